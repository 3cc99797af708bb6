"""The origin of two-way streams: HTTP/2, and what comes on a stream goes back on it at once.

A stream that brings nothing stays open and is silent, as that of a client that waits for news.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import cast

import uvloop

from benchmarks.players.peer import answer, receive
from keyhole.http.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADER,
    PREFACE,
    Kind,
    Setting,
    frame,
    settings_frame,
    window_frame,
)
from keyhole.http.hpack import encode_field

PLENTY = 1 << 30
"""Bytes of a window that is never used up."""

_HEAD = encode_field(b":status", b"200") + encode_field(b"content-type", b"application/grpc")
_TRAILERS = encode_field(b"grpc-status", b"0")


class Echo(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the proxy."""
        self._transport = cast("asyncio.Transport", transport)
        self._held = b""
        self._greeted = False
        settings = {Setting.MAX_CONCURRENT_STREAMS: 1000, Setting.INITIAL_WINDOW_SIZE: PLENTY}
        self._transport.write(settings_frame(settings) + window_frame(0, PLENTY))

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole."""
        data = self._held + data
        if not self._greeted:
            if len(data) < len(PREFACE):
                self._held = data
                return
            data = data[len(PREFACE) :]
            self._greeted = True
        while len(data) >= HEADER.size:
            high, low, kind, flags, number = HEADER.unpack_from(data)
            stop = HEADER.size + (high << 8 | low)
            if len(data) < stop:
                break
            self._take(kind, flags, number, data[HEADER.size : stop])
            data = data[stop:]
        self._held = data

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        out = b""
        if kind == Kind.HEADERS:
            out = frame(Kind.HEADERS, END_HEADERS, number, _HEAD)
        elif kind == Kind.DATA and payload:
            out = frame(Kind.DATA, 0, number, payload)
        elif kind in (Kind.SETTINGS, Kind.PING) and not flags & ACK:
            out = frame(kind, ACK, 0, payload if kind == Kind.PING else b"")
        if kind in (Kind.HEADERS, Kind.DATA) and flags & END_STREAM:
            out += frame(Kind.HEADERS, END_HEADERS | END_STREAM, number, _TRAILERS)
        if out:
            self._transport.write(out)


async def _serve(control: socket.socket, certificate: str) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    await loop.create_server(Echo, sock=listener, ssl=context)
    ended = asyncio.Event()

    def asked() -> None:
        if receive(control) is None:
            ended.set()
            return
        answer(control, listener.getsockname()[1])

    loop.add_reader(control, asked)
    await ended.wait()


def main() -> None:
    """Serve until the asker is gone; the one question is the port."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))


if __name__ == "__main__":
    main()
