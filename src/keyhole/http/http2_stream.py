"""One stream of HTTP/2 as a machine knows it, and the limits of a connection (I9).

Used by `http2.py` and its halves. Nothing is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.http.states import State

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from keyhole.http.field import Field

MAX_STREAMS = 100
"""Streams that a peer may have open on one connection: the least that the RFC recommends."""

STREAM_WINDOW = 128 * 1024
"""Bytes of one stream that the peer may send before we have passed them on."""

WIDE_WINDOW = 1024 * 1024
"""Bytes that the window of a stream may grow to while it is passed on at once: a bulk transfer then
takes fewer turns, and fewer updates of windows."""

EXTRA_WINDOW = WIDE_WINDOW - STREAM_WINDOW
"""Bytes that the windows of all streams of one connection may grow by."""

HELD_PIECE = 256 * 1024
"""Bytes of a stream that waited which are passed on at a time: as many as one read brings."""

CONNECTION_WINDOW = 2 * 1024 * 1024
"""Bytes of all streams that the peer may send before we have read them."""

MAX_SECTION_FRAMES = 16
"""Frames of one field section: four times what `MAX_HEAD` needs."""

MAX_WASTE = 4000
"""Frames that carry nothing, since the last `refill`: pings, empty data, settings, resets …

A client that cancels `MAX_STREAMS` requests at once is far from it. Each piece of data that we send
makes up for `MADE_UP`.
"""

MADE_UP = 4
"""Frames that a peer may send for each piece of ours: a small message may be answered by a window
of its stream, one of the connection, and by a ping."""

MAX_SETTINGS = 32
"""Settings of one frame: there are about ten that mean anything."""

WASTE_OF_A_RESET = 10
"""The waste that a request counts for if its client resets it before it was answered. Attack: rapid
reset."""

SMALL_UPDATE = 1024
"""Bytes below which more room in a window counts as waste. Attack: a byte at a time."""

WORK_AT_ONCE = 1024
"""Frames read in one go before the caller looks at other connections (I12): 2 to 4 ms."""

WORK_OF_A_HEAD = 64
"""The work that a head counts for, beside its length."""

BYTES_OF_WORK = 8
"""Bytes of a field section that count for one. Attack: Huffman code, 0.1 to 0.2 µs a byte."""

MAX_FORGOTTEN = 256
"""Streams that we have reset, whose last frames may still be on their way."""

MAX_KNOWN_LINES = 64
"""Lines whose compressed form is remembered: those of a few messages."""

MAX_KNOWN_LINE = 256
"""Bytes of such a line."""

MAX_KNOWN_STARTS = 16
"""Pseudo-fields of requests that are remembered in their compressed form."""

MAX_KNOWN_HEAD = 4096
"""Bytes of a head that is remembered with its field section, in the form of HTTP/1.1."""

DEFAULT_WINDOW = 65535
"""Bytes of each window before anything else was agreed."""

NO_LENGTH = -1
"""The length of a body that is not known."""


class SpareWindow:
    """Bytes that windows of streams may still grow by; several connections may share them."""

    __slots__ = ("left",)

    def __init__(self, size: int = EXTRA_WINDOW) -> None:
        self.left = size

    def widen(self, stream: Http2Stream) -> int:
        """Let the window of a stream grow to twice its size at most; by how much it did."""
        extra = min(self.left, stream.span, WIDE_WINDOW - stream.span)
        self.left -= extra
        stream.span += extra
        return extra

    def take_back(self, stream: Http2Stream) -> None:
        """A stream is over."""
        self.left += stream.span - STREAM_WINDOW
        stream.span = STREAM_WINDOW


class Http2Stream:
    """One request with its response, as the machine knows it."""

    __slots__ = (
        "answered", "ending", "held", "held_end", "held_size", "incoming", "interim", "left",
        "method", "number", "outgoing", "paused", "pending", "receiver", "room", "sent", "span",
        "to_send", "trailers", "uncredited", "wants_trailers", "window", "wire_size",
    )  # fmt: skip

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.incoming = State.IDLE
        """How far the peer's message has come."""
        self.outgoing = State.IDLE
        """How far our message has come."""
        self.receiver: object = None
        self.method = ""
        self.left = NO_LENGTH
        """Bytes that the peer's body still has to have, where it has said so."""
        self.to_send = NO_LENGTH
        """The same for our body, which ends by itself then."""
        self.wants_trailers = False
        """Whether the peer reads fields behind our body, so that this does not end by itself."""
        self.window = STREAM_WINDOW
        """Bytes that the peer may send."""
        self.span = STREAM_WINDOW
        """The window when all that came was granted again."""
        self.uncredited = 0
        """Bytes that were passed on and are not yet granted again."""
        self.room = window
        """Bytes that we may send."""
        self.paused = False
        self.held: bytearray | None = None
        """Data that waits because the stream is paused, in one piece: a byte costs no object."""
        self.held_size = 0
        """The same, with the padding that it had in frames."""
        self.held_end: Sequence[Field] | None = None
        """The trailers behind it, once the peer's message is whole."""
        self.pending: deque[bytes | memoryview] | None = None
        """Data that the peer has given no room for."""
        self.ending = False
        """Whether our message ends behind it."""
        self.trailers = b""
        self.wire_size = 0
        """Bytes that the peer's body has had so far, its framing included."""
        self.sent = 0
        """Bytes of our body that the peer had room for."""
        self.answered = False
        """Whether our response is whole, and the rest of the request of no use."""
        self.interim = 0
        """Responses of class 1xx that have come."""
