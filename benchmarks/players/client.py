"""The client: in an empty network namespace of its own, as a sandbox has one, or on the host."""

from __future__ import annotations

import select
import socket
import ssl
import statistics
import sys
import time

import dns.message
import dns.query

from benchmarks.players.origin import BLOCK, BULK, REPLY
from benchmarks.players.peer import serve
from keyhole.sandbox import empty_network
from keyhole.sandbox.programs import find_programs

AT_ONCE = 32
"""Connections that are open at once while new ones are counted: enough to keep a proxy busy."""

RECORD = b"\x17\x03\x03\x00\x40" + bytes(64)
"""A TLS record as it looks from outside."""

_RESOLVER = "198.51.100.53"
Address = tuple[str, int]


def door() -> list[socket.socket]:
    """Turn this namespace into a sandbox's and hand its door out, by the helper's own code."""
    empty_network.bring_up_loopback()
    empty_network.make_everything_local()
    empty_network.load_ruleset(str(find_programs().nft))
    return empty_network.open_door_sockets()


def resolve(name: str) -> str:
    """The address that the gateway gives a name."""
    reply = dns.query.udp(dns.message.make_query(name, "A"), _RESOLVER, timeout=20)
    return str(reply.answer[0][0])


def download(host: str, port: int) -> float:
    """Seconds for a bulk transfer to the client."""
    sink, left = bytearray(1 << 20), BULK
    with _connect((host, port), "down.example") as sock:
        start = time.perf_counter()
        while got := sock.recv_into(sink):
            left -= got
        took = time.perf_counter() - start
    if left:
        raise RuntimeError(f"{left} bytes did not come")
    return took


def upload(host: str, port: int) -> float:
    """Seconds for a bulk transfer from the client."""
    with _connect((host, port), "up.example") as sock:
        start = time.perf_counter()
        sock.sendall(RECORD)
        for _ in range(BULK // len(BLOCK)):
            sock.sendall(BLOCK)
        sock.shutdown(socket.SHUT_WR)
        _expect(sock)
        return time.perf_counter() - start


def connections(host: str, port: int, count: int) -> float:
    """Seconds for so many connections: connect, hello, small reply, close."""
    poll = select.epoll()
    talks: dict[int, socket.socket] = {}
    begun = done = 0
    start = time.perf_counter()
    while done < count:
        while begun < count and len(talks) < AT_ONCE:
            sock = _connect((host, port), "small.example")
            talks[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN)
            begun += 1
        for number, _ in poll.poll():
            sock = talks.pop(number)
            _expect(sock)
            sock.close()
            done += 1
    return time.perf_counter() - start


def fresh(host: str, port: int, count: int) -> float:
    """The median of seconds for a new connection, its hello and its reply, one after another."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        with _connect((host, port), "small.example") as sock:
            _expect(sock)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def talk(host: str, port: int, count: int) -> float:
    """The median of seconds for a request and its reply over one open connection."""
    times = []
    with _connect((host, port), "talk.example") as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _expect(sock)
        for _ in range(count):
            start = time.perf_counter()
            sock.sendall(RECORD)
            _expect(sock, len(RECORD))
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _connect(where: Address, name: str) -> socket.socket:
    """Connect and say hello; no `create_connection`, which would look up even an address."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.connect(where)
    sock.send(_HELLOS[name])
    return sock


def _expect(sock: socket.socket, size: int = len(REPLY)) -> None:
    got = len(sock.recv(size))
    while 0 < got < size:
        got += len(sock.recv(size - got)) or -size
    if got != size:
        raise RuntimeError("the connection was closed")


def _hello(name: str) -> bytes:
    sent = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), sent, server_hostname=name
        ).do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise RuntimeError("a handshake without a server")


NAMES = ("down.example", "up.example", "small.example", "talk.example")
_HELLOS = {name: _hello(name) for name in NAMES}


if __name__ == "__main__":
    serve(
        socket.socket(fileno=int(sys.argv[1])),
        {f.__name__: f for f in (door, resolve, download, upload, connections, fresh, talk)},
    )
