"""The bodies of inspected messages: their ends, and their payload (RFC 9112 §6, 7).

Called by the gateway's interception for both directions. A body is never held: payload is returned
as it is fed. Payload is not inspected here.
"""

from __future__ import annotations

import enum
import re
from typing import TypeVar

from keyhole.http.field import MAX_LINE, Field, folded, overrides_method, parse_field
from keyhole.http.request import ROUTING_AND_FRAMING, Treat, Treatment
from keyhole.http.response import NOT_FOR_THE_CLIENT
from keyhole.model.errors import Malformed

MAX_SIZE_DIGITS = 12
"""Digits of a chunk's size: 256 TiB, which overflows no server's integer."""

MAX_SIZE_LINE = MAX_SIZE_DIGITS + 2
"""Bytes of the line with a chunk's size, its end included. Extensions are refused."""

MAX_TRAILERS = 32
"""Fields after the last chunk; checksums and signatures are one or two."""

MAX_TRAILER_BYTES = MAX_LINE
"""Bytes of all fields after the last chunk."""

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,%d})\r\n" % MAX_SIZE_DIGITS)

_ABOUT_THE_CONTENT = b"content-"
_MODIFIERS = frozenset(
    b"authorization cookie set-cookie set-cookie2 age cache-control date expires location"
    b" max-forwards pragma range retry-after vary warning www-authenticate if-match if-none-match"
    b" if-modified-since if-unmodified-since if-range".split()
)
"""Fields that steer, authenticate or describe: too late in a trailer (RFC 9110 §6.5.1)."""

Bytes = TypeVar("Bytes", bytes, memoryview)


class LengthReader:
    """A body of a known length."""

    __slots__ = ("left",)

    def __init__(self, length: int) -> None:
        self.left = length
        """The bytes that have not arrived yet."""

    @property
    def done(self) -> bool:
        """Whether the body is complete."""
        return not self.left

    def feed(self, data: Bytes) -> tuple[Bytes, Bytes]:
        """Take the next bytes; returns those of the body and those after it."""
        left = self.left
        if len(data) <= left:
            self.left = left - len(data)
            return data, data[:0]
        self.left = 0
        return data[:left], data[left:]


class _State(enum.Enum):
    SIZE = 0
    DATA = 1
    DATA_END = 2
    TRAILER = 3
    DONE = 4


class ChunkedReader:
    """A body that comes in chunks."""

    __slots__ = ("_held", "_left", "_room", "_state", "rest", "trailers", "treat")

    def __init__(self, treat: Treat | None) -> None:
        """`treat` comes from the request of this body; None for the body of a response. The caller
        replaces it when the policy changes."""
        self.treat = treat
        self._state = _State.SIZE
        self._held = b""
        self._left = 0
        self._room = MAX_TRAILER_BYTES
        self.rest = b""
        """The bytes that were fed beyond the end of the body."""
        self.trailers: list[Field] = []
        """Trailers that may be passed on."""

    @property
    def done(self) -> bool:
        """Whether the body is complete, its trailers included."""
        return self._state is _State.DONE

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns the payload in them.

        It is returned in one piece, so that a byte in a chunk of its own costs the caller nothing
        (I12).
        """
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size:
            state = self._state
            if state is _State.DATA:
                # A slice of all bytes, and a join of one piece, are not copied.
                piece = data[at : at + self._left]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._state = _State.DATA_END
            elif state is _State.DONE:
                self.rest += data[at:]
                break
            else:
                if state is _State.SIZE and not self._held:
                    at = _take_whole_chunks(data, at, pieces)
                at = self._line(data, at)
        return b"".join(pieces)

    def _line(self, data: bytes, at: int) -> int:
        """Read one line, or hold its beginning. Returns the end of the line."""
        state = self._state
        room = _ROOM.get(state, self._room) - len(self._held)
        end = data.find(b"\n", at, at + room) + 1
        if not end:
            if len(data) - at >= room:
                raise Malformed(_TOO_LONG[state])
            self._held += data[at:]
            return len(data)
        line, self._held = self._held + data[at:end], b""
        if state is _State.SIZE:
            self._size(line)
        elif state is _State.DATA_END:
            if line != b"\r\n":
                raise Malformed("a chunk does not end where its size says")
            self._state = _State.SIZE
        else:
            self._trailer(line)
        return end

    def _size(self, line: bytes) -> None:
        found = _SIZE_LINE.fullmatch(line)
        if found is None:
            # `int` would accept b"0x1f", b"+1f", b"1_f" and b" 1f", which an origin may read
            # differently.
            raise Malformed("a chunk's size is not a plain hexadecimal number")
        self._left = int(found[1], 16)
        self._state = _State.DATA if self._left else _State.TRAILER

    def _trailer(self, line: bytes) -> None:
        if line == b"\r\n":
            self._state = _State.DONE
            return
        self._room -= len(line)
        if line[-2:] != b"\r\n":
            raise Malformed("a line ends with a bare LF")
        field = parse_field(line[:-2])
        if may_follow_body(field.name, self.treat):
            if len(self.trailers) >= MAX_TRAILERS:
                raise Malformed(f"a body has at most {MAX_TRAILERS} trailers")
            self.trailers.append(field)


def may_follow_body(name: bytes, treat: Treat | None) -> bool:
    """Whether a field of this lower-case name may be a trailer; `treat` as in `ChunkedReader`.

    Raises Malformed for a client that sends one that may not.
    """
    plain = folded(name)
    if treat is None:
        return not (name in NOT_FOR_THE_CLIENT or _steers(name))
    # An origin that merges trailers with the head would take a credential from there (I6).
    if (
        plain in ROUTING_AND_FRAMING
        or overrides_method(plain)
        or _steers(plain)
        or not treat(name) is treat(plain) is Treatment.KEEP
    ):
        raise Malformed("a trailer is a field that may stand in the head only")
    return True


def _take_whole_chunks(data: bytes, at: int, pieces: list[bytes]) -> int:
    """Take whole chunks, from their size to their end. Returns the beginning of the next one.

    The last chunk and malformed ones are left to the reader. A loop of its own, since 256 KiB can
    hold 43,000 chunks.
    """
    read_size = _SIZE_LINE.match
    while found := read_size(data, at):
        start = found.end()
        end = start + int(found[1], 16)
        if end == start or data[end : end + 2] != b"\r\n":
            break
        pieces.append(data[start:end])
        at = end + 2
    return at


_ROOM = {_State.SIZE: MAX_SIZE_LINE, _State.DATA_END: 2}
_TOO_LONG = {
    _State.SIZE: "a chunk's size is not a plain hexadecimal number",
    _State.DATA_END: "a chunk does not end where its size says",
    _State.TRAILER: f"the trailers of a body have at most {MAX_TRAILER_BYTES} bytes",
}


def _steers(name: bytes) -> bool:
    return name in _MODIFIERS or name.startswith(_ABOUT_THE_CONTENT)
