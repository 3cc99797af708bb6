"""The origin: does what the name in the hello says, and is cheap, so that the proxy is measured."""

from __future__ import annotations

import select
import socket
import sys

from benchmarks.players.peer import answer, receive

BULK = 256 << 20
"""Bytes of a bulk transfer."""

REPLY = bytes(107)
BLOCK = bytes(1 << 20)


def main() -> None:
    """Serve until the asker is gone: one thread, one bulk transfer at a time."""
    control = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    poll = select.epoll()
    for sock in (control, listener):
        poll.register(sock, select.EPOLLIN)
    talks: dict[int, socket.socket] = {}
    greeted: set[int] = set()
    while True:
        for number, _ in poll.poll():
            if number == control.fileno():
                if receive(control) is None:
                    return
                answer(control, listener.getsockname()[1])
            elif number == listener.fileno():
                _accept(listener, poll, talks)
            elif not _talk(talks[number], greeted):
                greeted.discard(number)
                talks.pop(number).close()


def _accept(listener: socket.socket, poll: select.epoll, talks: dict[int, socket.socket]) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        talks[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)


def _talk(sock: socket.socket, greeted: set[int]) -> bool:
    """Read once and react; False: it is over."""
    try:
        data = sock.recv(65536)
    except ConnectionError:
        return False
    if not data:
        return False
    number = sock.fileno()
    if number in greeted:
        sock.sendall(data)
        return True
    greeted.add(number)
    if b"down.example" in data:
        for _ in range(BULK // len(BLOCK)):
            sock.sendall(BLOCK)
        return False
    if b"up.example" in data:
        while sock.recv_into(_SINK):
            pass
    sock.sendall(REPLY)
    return True


_SINK = bytearray(1 << 20)


if __name__ == "__main__":
    main()
