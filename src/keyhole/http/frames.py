"""Frames of HTTP/2 (RFC 9113 §4, 6): their numbers, their first bytes, and how they are written.

Used by `http2.py` and the machines of both sides. Nothing is decided here.
"""

from __future__ import annotations

import enum
import struct

from keyhole.model.errors import Malformed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client, which no server of HTTP/1.1 takes for a request."""

HEADER = struct.Struct(">HBBBL")
"""Length (in two parts), kind, flags, stream."""

MAX_FRAME = 16 * 1024
"""Bytes of a frame's payload that are accepted: the protocol's default."""

MAX_NUMBER = 2**31 - 1
"""The largest stream, and the largest window."""


class Kind(enum.IntEnum):
    """The kind of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(enum.IntEnum):
    """A setting that a peer announces."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6
    ENABLE_CONNECT_PROTOCOL = 8


class Code(enum.IntEnum):
    """The reason why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

_DATA, _HEADERS, _CONTINUATION = int(Kind.DATA), int(Kind.HEADERS), int(Kind.CONTINUATION)


class ConnectionFault(Malformed):
    """The peer broke a rule of the connection, which ends with this code (RFC 9113 §5.4.1)."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.error = code


class StreamFault(Malformed):
    """The peer broke a rule of one stream, which ends with this code (RFC 9113 §5.4.2)."""

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.error = code


def frame(kind: int, flags: int, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def data_frames(
    stream: int, data: bytes | memoryview, most: int, *, ended: bool = False
) -> list[bytes | memoryview]:
    """Data in frames of at most `most` bytes, as pieces that are still to be joined."""
    size = len(data)
    if size <= most:
        flags = END_STREAM if ended else 0
        return [HEADER.pack(size >> 8, size & 0xFF, _DATA, flags, stream), data]
    full = HEADER.pack(most >> 8, most & 0xFF, _DATA, 0, stream)
    pieces: list[bytes | memoryview] = []
    last = (size - 1) // most * most
    for start in range(0, last, most):
        pieces += (full, data[start : start + most])
    return pieces + data_frames(stream, data[last:], most, ended=ended)


def header_frames(stream: int, section: bytes, most: int, *, ended: bool) -> bytes:
    """A field section in as many frames as it needs; no other frame may come between them."""
    flags = END_STREAM if ended else 0
    if len(section) <= most:
        return frame(_HEADERS, flags | END_HEADERS, stream, section)
    pieces = [section[start : start + most] for start in range(0, len(section), most)]
    kinds = [_HEADERS] + [_CONTINUATION] * (len(pieces) - 1)
    ends = [0] * (len(pieces) - 1) + [END_HEADERS]
    ends[0] |= flags
    return b"".join(map(frame, kinds, ends, [stream] * len(pieces), pieces))


def settings_frame(values: dict[Setting, int]) -> bytes:
    """Announce our settings."""
    payload = b"".join(struct.pack(">HL", name, value) for name, value in values.items())
    return frame(Kind.SETTINGS, 0, 0, payload)


def window_frame(stream: int, amount: int) -> bytes:
    """Let the peer send so many more bytes; stream 0 is the connection."""
    return frame(Kind.WINDOW_UPDATE, 0, stream, amount.to_bytes(4, "big"))


def reset_frame(stream: int, code: Code) -> bytes:
    """End a stream now."""
    return frame(Kind.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway_frame(last: int, code: Code) -> bytes:
    """Announce that no stream after `last` is served."""
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">LL", last, code))


def unpadded(payload: memoryview, flags: int) -> memoryview:
    """A payload without its padding (RFC 9113 §6.1)."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame is padded beyond its end")
    return payload[1 : len(payload) - payload[0]]
