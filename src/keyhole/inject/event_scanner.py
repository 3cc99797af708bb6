"""A body of AWS's event stream, searched event by event (I7).

At the end of an event nothing waits for the next one, as it does in other bodies: of a stream that
goes both ways, that might be the response to it. An end is believed if the event's checksum is
right, and then another event must follow. Attack: bytes that an origin reflects are shaped as an
event that ends in the middle of the secret behind them. Whoever guesses the first character of the
secret can make the checksum right, but no secret goes on with the length of an event, whose first
byte is zero: the response is cut before the rest of the secret.

A secret is replaced by a stand-in of its length, so lengths stay true; the event's checksum does
not, and the client refuses the event.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from keyhole.inject.encoded_scanner import undecodable
from keyhole.inject.scrub import Scrubber

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles

_LENGTH = _CHECKSUM = 4
_SMALLEST, _LARGEST = 16, (1 << 24) - 1
"""Bytes of an event: two lengths and two checksums; and a bound above what services send."""


class EventScanner:
    """One body on its way. Where it is no event stream after all, it is searched as any other."""

    __slots__ = ("_believed", "_checksum", "_left", "_length", "_plain", "_sum")

    def __init__(self, needles: Needles) -> None:
        self._plain = Scrubber(needles)
        self._believed = False
        """Whether an event has ended."""
        self._length = b""
        """The bytes of a length so far."""
        self._left = 0
        """Bytes of the event that are still to come; below zero: no events are told apart."""
        self._sum = 0
        """The checksum of what has come of the event, and what has come of its own."""
        self._checksum = b""

    @property
    def hits(self) -> int:
        """The number of needles that were replaced."""
        return self._plain.hits

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go on. Raises ResponseUnfit."""
        passed: list[bytes | memoryview] = []
        at, size = 0, len(data)
        while at < size:
            if self._left < 0:
                passed.append(self._plain.feed(data[at:]))
                break
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                passed.append(self._plain.feed(piece))
                if self._take(piece):
                    self._believed = True
                    passed.append(self._plain.end())
                continue
            wanted = _LENGTH - len(self._length)
            self._length += data[at : at + wanted]
            at += wanted
            if len(self._length) == _LENGTH:
                length, self._length = self._length, b""
                event = int.from_bytes(length, "big")
                self._left = event - _LENGTH if _SMALLEST <= event <= _LARGEST else -1
                if self._left < 0 and self._believed:
                    raise undecodable("an event is followed by something else")
                self._sum, self._checksum = zlib.crc32(length), b""
                # Attack: a secret that begins in the bytes of a length.
                passed.append(self._plain.feed(length))
        return b"".join(passed)

    def _take(self, piece: bytes) -> bool:
        """Whether the event ends with these bytes, rightly."""
        summed = max(0, self._left - _CHECKSUM)
        self._sum = zlib.crc32(piece[:summed], self._sum)
        self._checksum += piece[summed:]
        self._left -= len(piece)
        if self._left:
            return False
        if int.from_bytes(self._checksum, "big") != self._sum:
            self._left = -1
        return not self._left

    def end(self) -> bytes:
        """The rest, once the origin has sent its last byte."""
        length, self._length = self._length, b""
        return b"".join((self._plain.feed(length), self._plain.end()))
