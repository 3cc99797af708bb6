"""The parts of WebSocket that the gateway reads: handshake and the origin's frames (RFC 6455).

Called by the gateway's interception. No extension is ever offered to the origin, so every payload
is in the clear and can be searched; frames pass as they came, or the connection is cut. The
client's frames are masked, go to an origin that was judged, and are read only to look for decoys.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import NamedTuple

from keyhole.model.errors import Malformed

MAX_CONTROL = 125
"""Bytes in a control frame (RFC 6455 §5.5)."""

MAX_CLOSE_REASON = MAX_CONTROL - 2
"""Bytes of the reason of a close, behind its status (§5.5.1)."""

MAX_FRAME = 2**63 - 1
"""Bytes in a frame: "the most significant bit MUST be 0" (§5.2). Frames are never held."""

# 16 octets in base64: the last digit before the padding carries two bits.
_KEY = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

FIN = 0x80
MASKED = 0x80
_LENGTH_16 = 126
_LENGTH_64 = 127

_CONTINUATION, TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


class WebSocketKind(NamedTuple):
    """The meaning of a frame's first byte."""

    control: bool
    final: bool
    continues: bool


FRAME_KINDS = {
    final | opcode: WebSocketKind(opcode >= _CLOSE, bool(final), opcode == _CONTINUATION)
    for opcode in (_CONTINUATION, TEXT, _BINARY, _CLOSE, _PING, _PONG)
    for final in (0, FIN)
}
"""By first byte; one with a reserved bit or another opcode is not there."""

_CLOSES = FRAME_KINDS[FIN | _CLOSE]


def valid_key(key: bytes) -> bool:
    """Whether this is the value of a Sec-WebSocket-Key."""
    return _KEY.fullmatch(key) is not None


def accept_for(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept that an origin gives for a key (§4.2.2)."""
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest)


class FramePiece(NamedTuple):
    """A part of a frame, as much as has come. Control frames come whole."""

    data: bytes
    """The bytes on the wire, to be passed unchanged."""
    payload: bytes
    """The payload in them."""
    ends_message: bool
    """Whether the message ends with it; always so for control frames."""
    control: bool
    """Whether it is a control frame, which may come between the frames of a message."""


_new_piece = tuple.__new__
"""Makes a `FramePiece` in a third of the time."""


class FrameReader:
    """Reads an origin's frames after the handshake."""

    __slots__ = ("_final", "_held", "_in_message", "_left", "closed")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._final = False
        self._in_message = False
        self.closed = False
        """The origin has sent a close frame."""

    @property
    def between_frames(self) -> bool:
        """Whether the last frame has come whole."""
        return not self._left and not self._held

    def feed(self, data: bytes) -> list[FramePiece]:
        """Take the next bytes and return the pieces that may pass."""
        pieces: list[FramePiece] = []
        if self._held:
            data, self._held = self._held + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                pieces.append(FramePiece(part, part, self._final and not self._left, control=False))
                at += len(part)
                continue
            at = self._short_frames(data, at, pieces)
            if at == size:
                break
            end = self._frame(data, at, pieces)
            if end == at:
                self._held = data[at:]
                break
            at = end
        return pieces

    def _short_frames(self, data: bytes, at: int, pieces: list[FramePiece]) -> int:
        """Take short frames that are complete, and return the position of the first other frame.

        A loop of its own, since 256 KiB can hold 130,000 frames (I12).
        """
        size, in_message = len(data), self._in_message
        while at + 1 < size and not self.closed:
            kind, start = FRAME_KINDS.get(data[at], _CLOSES), at + 2
            end = start + data[at + 1]
            if kind is _CLOSES or end - start > MAX_CONTROL or end > size:
                break
            control, final, continues = kind
            if control:
                if not final:
                    break
            elif continues is in_message:
                in_message = not final
            else:
                break
            pieces.append(_new_piece(FramePiece, (data[at:end], data[start:end], final, control)))
            at = end
        self._in_message = in_message
        return at

    def _frame(self, data: bytes, at: int, pieces: list[FramePiece]) -> int:
        """Read the start of a frame, or all of a control frame; `at` while that is not there."""
        if self.closed:
            raise Malformed("a frame comes after the one that closes")
        kind = FRAME_KINDS.get(data[at])
        if kind is None:
            raise Malformed("a frame uses an extension that was not agreed on")
        control, final, continues = kind
        if not control and continues is not self._in_message:
            raise Malformed("the frames of a message are out of order")
        found = read_frame_length(data, at + 1)
        if found is None:
            return at
        length, start = found
        end = start + length
        if not control:
            part = data[start:end]
            left = self._left = length - len(part)
            self._final, self._in_message = final, not final
            pieces.append(
                FramePiece(data[at : end - left], part, final and not left, control=False)
            )
            return end - left
        closes = data[at] == FIN | _CLOSE
        if not final or length > MAX_CONTROL or (closes and length == 1):
            raise Malformed("a control frame is fragmented, too long, or closes without a reason")
        if end > len(data):
            return at
        self.closed = closes
        pieces.append(FramePiece(data[at:end], data[start:end], ends_message=True, control=True))
        return end


class ClientFrames:
    """Reads the payloads of a client's frames, which are masked (§5.3)."""

    __slots__ = ("_held", "_left", "_mask")

    def __init__(self) -> None:
        self._held = b""
        self._left = 0
        self._mask = b""

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """Take the next bytes. Returns the text of messages in them, and the payloads of control
        frames, which may come between the frames of a message. Raises Malformed."""
        texts: list[bytes] = []
        controls: list[bytes] = []
        if self._held:
            data, self._held = self._held + data, b""
        at, size = 0, len(data)
        while at < size:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                texts.append(unmask(part, self._mask))
                turn = len(part) % 4
                self._mask = self._mask[turn:] + self._mask[:turn]
                at += len(part)
                continue
            end = self._frame(data, at, controls)
            if end == at:
                self._held = data[at:]
                break
            at = end
        return b"".join(texts), controls

    def _frame(self, data: bytes, at: int, controls: list[bytes]) -> int:
        """Read the head of a frame, or all of a control frame; `at` while that is not there."""
        head = read_client_head(data, at)
        if head is None:
            return at
        kind, length, mask, start = head
        if not kind.control:
            self._left, self._mask = length, mask
            return start
        if length > MAX_CONTROL:
            raise Malformed("a control frame is too long")
        if start + length > len(data):
            return at
        controls.append(unmask(data[start : start + length], mask))
        return start + length


class ClientHead(NamedTuple):
    """The head of a client's frame."""

    kind: WebSocketKind
    length: int
    """Bytes of its payload."""
    mask: bytes
    start: int
    """Where its payload starts."""


def read_client_head(data: bytes, at: int) -> ClientHead | None:
    """The head of a client's frame; None until it has come whole. Raises Malformed."""
    if len(data) - at < 2:
        return None
    kind = FRAME_KINDS.get(data[at])
    if kind is None:
        raise Malformed("a frame uses an extension that was not agreed on")
    if not data[at + 1] & MASKED:
        raise Malformed("a client's frame is not masked")
    found = read_frame_length(bytes((data[at + 1] & ~MASKED,)) + data[at + 2 : at + 10], 0)
    if found is None:
        return None
    length, width = found
    start = at + 1 + width + 4
    if start > len(data):
        return None
    return ClientHead(kind, length, data[start - 4 : start], start)


def write_close(code: int, why: str) -> bytes:
    """An origin's frame that closes, with the words that fit."""
    payload = code.to_bytes(2, "big") + why.encode("utf-8", "replace")
    while len(payload) > MAX_CONTROL:
        why = why[:-1]
        payload = code.to_bytes(2, "big") + why.encode("utf-8", "replace")
    return bytes((FIN | _CLOSE, len(payload))) + payload


def unmask(part: bytes, mask: bytes) -> bytes:
    """The payload of a client's frame (§5.3)."""
    size = len(part)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(part, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")


def read_frame_length(data: bytes, at: int) -> tuple[int, int] | None:
    """The length at `at`, in its shortest form, and where the payload starts; None if cut."""
    if at >= len(data):
        return None
    if data[at] & MASKED:
        # §5.1: "A server MUST NOT mask any frames"; masked, a payload could not be searched.
        raise Malformed("an origin's frame is masked")
    length = data[at]
    if length < _LENGTH_16:
        return length, at + 1
    width, least = (2, _LENGTH_16) if length == _LENGTH_16 else (8, 1 << 16)
    end = at + 1 + width
    if end > len(data):
        return None
    length = int.from_bytes(data[at + 1 : end], "big")
    if not least <= length <= MAX_FRAME:
        raise Malformed("a frame's length is not in its shortest form, or too large")
    return length, end
