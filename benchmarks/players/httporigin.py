"""The origin behind the proxies of intercepted traffic: TLS, HTTP/1.1, and as cheap as it can be.

It believes the proxies: no request is judged here, and a head is looked at only for its path and
the length of its body. It counts what it has served, which is how rates are told from outside.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
import sys
import time
from typing import cast

import uvloop

from benchmarks.players import duties
from benchmarks.players.peer import answer, receive

BULK = 64 << 20
"""Bytes of a bulk transfer."""

BLOCK = random.Random(7).randbytes(256 << 10)  # noqa: S311 - as an archive looks to a scanner
REPLY = (
    b'{"id":"item_7","object":"item","created":1731628800,"status":"completed",'
    b'"usage":{"tokens":17},"end":true}\n'
)
EVENT = (
    b'event: delta\ndata: {"sent":%016d,"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":" and so on"}}\n\n'
)
"""An event as a model's answer has them; `sent` is the host's monotonic clock, in nanoseconds."""

EVENT_INTERVAL = 0.004
"""Seconds between events: none waits behind another."""

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_COUNT = re.compile(rb"[?&]count=(\d+)")
_DOWN, _EVENTS, _ECHO = (path.encode() for path in (duties.DOWN, duties.EVENTS, duties.ECHO))


def _plain(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


_SMALL = _plain(REPLY)
_BULK = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n"
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


class Talk(asyncio.Protocol):
    """One connection."""

    served = 0
    seen = b""
    """The head that was asked to be echoed last, as it came here."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._head = b""
        self._body = 0
        self._left = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where replies go."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(1 << 20)

    def data_received(self, data: bytes) -> None:
        """Take a head, or a part of a body."""
        if self._body:
            self._swallow(data)
            return
        data = self._head + data
        head, found, body = data.partition(b"\r\n\r\n")
        if not found:
            self._head = data
            return
        self._head = b""
        path = head.split(b" ", 2)[1]
        if head.startswith(b"POST"):
            length = _LENGTH.search(head)
            self._body = int(length[1]) if length else 0
            self._swallow(body)
        elif path.startswith(_DOWN):
            self._left = BULK
            self._transport.write(_BULK % BULK)
            self._pour()
        elif path.startswith(_EVENTS):
            asked = _COUNT.search(path)
            self._transport.write(_STREAM)
            self._loop.call_soon(self._event, int(asked[1]) if asked else 1)
        elif path.startswith(_ECHO):
            Talk.seen = head
            self._reply(_plain(head, b"text/plain"))
        else:
            self._reply(_SMALL)

    def pause_writing(self) -> None:
        """The proxy is slower than we are."""
        self._paused = True

    def resume_writing(self) -> None:
        """Go on with what was being sent."""
        self._paused = False
        self._pour()

    def connection_lost(self, _: Exception | None) -> None:
        """End what was being sent."""
        self._left = 0

    def _reply(self, reply: bytes) -> None:
        Talk.served += 1
        self._transport.write(reply)

    def _swallow(self, data: bytes) -> None:
        self._body -= len(data)
        if not self._body:
            self._reply(_SMALL)

    def _pour(self) -> None:
        while self._left and not self._paused:
            self._left -= len(BLOCK)
            self._transport.write(BLOCK)

    def _event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if not left:
            self._transport.write(b"0\r\n\r\n")
            return
        event = EVENT % time.monotonic_ns()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._loop.call_later(EVENT_INTERVAL, self._event, left - 1)


async def _serve(control: socket.socket, certificate: str) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["http/1.1"])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await loop.create_server(lambda: Talk(loop), sock=listener, ssl=context)
    ended = asyncio.Event()

    def asked() -> None:
        question = receive(control)
        if question is None:
            ended.set()
            return
        port = listener.getsockname()[1]
        known = {"port": port, "served": Talk.served, "seen": Talk.seen.decode()}
        answer(control, known[question[0]])

    loop.add_reader(control, asked)
    await ended.wait()


def main() -> None:
    """Serve until the asker is gone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))


if __name__ == "__main__":
    main()
