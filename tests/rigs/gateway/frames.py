"""A handshake of WebSocket and frames, byte by byte."""

from __future__ import annotations

import struct

from keyhole.wire.websocket import accept_for

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
OFFER = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Key: {KEY}")
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


def right(*lines: str, accept: str | None = None, upgrade: str = "websocket") -> bytes:
    """The answer to OFFER."""
    accept = accept_for(KEY.encode()).decode() if accept is None else accept
    rows = ("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {upgrade}",
            f"Sec-WebSocket-Accept: {accept}", *lines)  # fmt: skip
    return "".join(f"{row}\r\n" for row in rows).encode() + b"\r\n"


def frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True, rsv: int = 0) -> bytes:
    """A frame of the origin's."""
    first = bytes([fin << 7 | rsv << 4 | opcode])
    if len(payload) < 126:
        return first + bytes([len(payload)]) + payload
    if len(payload) < 1 << 16:
        return first + b"\x7e" + struct.pack(">H", len(payload)) + payload
    return first + b"\x7f" + struct.pack(">Q", len(payload)) + payload


def masked(payload: bytes, opcode: int = 1, *, final: bool = True, key: bytes = b"k3y!") -> bytes:
    """A short frame as a client sends it."""
    hidden = bytes(byte ^ key[n % 4] for n, byte in enumerate(payload))
    return bytes([opcode | 0x80 * final, 0x80 | len(payload)]) + key + hidden
