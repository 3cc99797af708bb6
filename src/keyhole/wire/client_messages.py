"""A client's WebSocket messages, held until they are whole (RFC 6455 §5.4).

Used where messages are judged before they pass. Control frames may come between the frames of a
message; each is handed out as soon as it is whole. The wire bytes are kept beside the payload,
because a message that is allowed passes as it came: some servers refuse one that was framed anew.
"""

from __future__ import annotations

from typing import NamedTuple

from keyhole.model.errors import Malformed
from keyhole.wire.websocket import (
    FIN,
    MASKED,
    MAX_CONTROL,
    TEXT,
    read_client_head,
    unmask,
)

MAX_FRAGMENTS = 4096
"""Frames of one message: clients cut long ones at 16 KiB and more. Attack: a frame for each byte,
of which a read has 40,000 (I12)."""

_PIECE = 64 << 10
"""Bytes that are unmasked at a time."""


class ClientMessage(NamedTuple):
    """A whole message, or a control frame."""

    wire: bytes
    """As it came."""
    payload: bytes
    control: bool
    text: bool


class ClientMessages:
    """The messages of one connection. `most` bounds the bytes of one, with its framing (I9)."""

    __slots__ = (
        "_at", "_data", "_final", "_fragments", "_left", "_mask", "_most", "_payload", "_text",
        "_wire",
    )  # fmt: skip

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = b""
        self._at = 0
        self._left = -1
        """Bytes of the present frame that are still to come; below zero: between two frames."""
        self._mask = b""
        self._final = False
        self._fragments = 0
        """Frames of the present message; 0: between two messages."""
        self._text = False
        self._wire = bytearray()
        self._payload = bytearray()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._wire) + len(self._payload) + len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add bytes of the wire, which `take` reads."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def take(self) -> ClientMessage | None:
        """The next message or control frame; None until more bytes come. Raises Malformed."""
        while True:
            if self._left < 0:
                control = self._begin_frame()
                if control is not None:
                    return control
                if self._left < 0:
                    return None
            if not self._take_payload():
                return None
            if self._final:
                return self._end_message()

    def _begin_frame(self) -> ClientMessage | None:
        """Read the head of a frame, or all of a control frame."""
        data, at = self._data, self._at
        head = read_client_head(data, at)
        if head is None:
            return None
        kind, length, mask, start = head
        if kind.control:
            if length > MAX_CONTROL or not kind.final:
                raise Malformed("a control frame is fragmented or too long")
            end = start + length
            if end > len(data):
                return None
            self._at = end
            return ClientMessage(data[at:end], unmask(data[start:end], mask), True, False)
        if kind.continues is not bool(self._fragments):
            raise Malformed("the frames of a message are out of order")
        if not self._fragments:
            self._text = data[at] & ~FIN == TEXT
        self._fragments += 1
        if len(self._wire) + length > self._most or self._fragments > MAX_FRAGMENTS:
            raise Malformed(f"a message has more than {self._most} bytes, or too many frames")
        self._wire += data[at:start]
        self._left, self._mask, self._final = length, mask, kind.final
        self._at = start
        return None

    def _take_payload(self) -> bool:
        """Take what has come of the present frame; whether that is all of it."""
        while self._left and self._at < len(self._data):
            piece = self._data[self._at : self._at + min(self._left, _PIECE)]
            self._wire += piece
            self._payload += unmask(piece, self._mask)
            turn = len(piece) % 4
            self._mask = self._mask[turn:] + self._mask[:turn]
            self._at += len(piece)
            self._left -= len(piece)
        if self._left:
            return False
        self._left = -1
        return True

    def _end_message(self) -> ClientMessage:
        whole = ClientMessage(bytes(self._wire), bytes(self._payload), False, self._text)
        self._wire, self._payload = bytearray(), bytearray()
        self._fragments = 0
        return whole


def write_text(payload: bytes) -> bytes:
    """A text message of a client in one frame, masked with zeros."""
    size = len(payload)
    if size < 126:
        length = bytes((MASKED | size,))
    elif size < 1 << 16:
        length = bytes((MASKED | 126,)) + size.to_bytes(2, "big")
    else:
        length = bytes((MASKED | 127,)) + size.to_bytes(8, "big")
    return bytes((FIN | TEXT,)) + length + b"\0\0\0\0" + payload
