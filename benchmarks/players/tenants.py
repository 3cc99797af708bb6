"""The sandboxes of many sessions, without the sandboxes: one namespace each, one process for all.

It makes empty namespaces by the helper's own code, hands their doors out, and then is the client in
any number of them at a time: each connection asks, waits for the answer, and asks again.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import ssl
import sys
import time
from collections import Counter
from functools import partial
from typing import ClassVar, cast

import dns.message
import dns.query
import uvloop

from benchmarks.players import duties
from benchmarks.players.httporigin import REPLY
from benchmarks.players.peer import serve
from keyhole.sandbox import empty_network
from keyhole.sandbox.programs import find_programs

_NEW_NET = 0x40000000
_RESOLVER = "198.51.100.53"
_NOT_TLS = 9000
_REQUEST = duties.steady(duties.SMALL)


class Asking(asyncio.Protocol):
    """A connection that always has one request under way."""

    answered: ClassVar[Counter[int]] = Counter()
    """Answers by the number of the namespace."""
    stopped = False

    def __init__(self, number: int) -> None:
        self._number = number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._left = b""
        self._transport.write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        """The origin's answers are all alike, and end so."""
        self._left += data
        if self._left.endswith(REPLY):
            if not self._left.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(self._left.decode(errors="replace"))
            self._left = b""
            Asking.answered[self._number] += 1
            if not Asking.stopped:
                self._transport.write(_REQUEST)

    def connection_lost(self, error: Exception | None) -> None:
        """None may be lost while it is measured."""
        if not Asking.stopped:
            raise RuntimeError(f"a connection was cut: {error}")


class Tenants:
    """What the measurement asks for."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._nft = str(find_programs().nft)
        self._spaces: dict[int, int] = {}
        self._trust: dict[int, ssl.SSLContext] = {}
        self._held: list[socket.socket] = []

    def make(self, number: int) -> list[socket.socket]:
        """A namespace with this number, and its door."""
        if self._libc.unshare(_NEW_NET):
            raise OSError(ctypes.get_errno(), "unshare")
        self._spaces[number] = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        empty_network.bring_up_loopback()
        empty_network.make_everything_local()
        empty_network.load_ruleset(self._nft)
        return empty_network.open_door_sockets()

    def trust(self, number: int, authority: str) -> None:
        """Whom clients in that namespace believe."""
        made = self._trust[number] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.load_verify_locations(cadata=authority)
        made.set_alpn_protocols(["http/1.1"])

    def load(
        self, numbers: list[int], connections: int, warm: float, window: float
    ) -> tuple[float, float, list[int]]:
        """Ask from each of these namespaces, over so many connections.

        Gives the host's monotonic clock at both ends of the window, and how many answers came in it
        for each namespace.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._load(numbers, connections, warm, window))

    def hold(self, number: int, count: int) -> None:
        """Connect to so many hosts that no rule names, and leave the connections open."""
        for each in range(count):
            sock = self._connect(number, f"h{each}.example", _NOT_TLS)
            sock.send(b"x")
            self._held.append(sock)

    async def _load(
        self, numbers: list[int], connections: int, warm: float, window: float
    ) -> tuple[float, float, list[int]]:
        loop = asyncio.get_running_loop()
        Asking.stopped = False
        transports = []
        for number in numbers:
            for _ in range(connections):
                sock = self._connect(number)
                context = self._trust[number]
                transport, _ = await loop.create_connection(
                    partial(Asking, number), sock=sock, ssl=context, server_hostname=duties.HOST
                )
                transports.append(transport)
        await asyncio.sleep(warm)
        first, begun = Asking.answered.copy(), time.monotonic()
        await asyncio.sleep(window)
        last, ended = Asking.answered.copy(), time.monotonic()
        Asking.stopped = True
        for transport in transports:
            transport.abort()
        await asyncio.sleep(0.05)  # so that the loop sees them go
        return begun, ended, [last[number] - first[number] for number in numbers]

    def _connect(
        self, number: int, host: str = duties.HOST, port: int = duties.PORT
    ) -> socket.socket:
        if self._libc.setns(self._spaces[number], _NEW_NET):
            raise OSError(ctypes.get_errno(), "setns")
        question = dns.message.make_query(host, "A")
        reply = dns.query.udp(question, _RESOLVER, timeout=20)
        sock = socket.create_connection((str(reply.answer[0][0]), port), 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        return sock


def main() -> None:
    """Serve until the asker is gone."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tenants = Tenants()
    own = (tenants.make, tenants.trust, tenants.load, tenants.hold)
    serve(socket.socket(fileno=int(sys.argv[1])), {f.__name__: f for f in own})


if __name__ == "__main__":
    main()
