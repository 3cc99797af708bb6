"""Searches a body of gRPC messages, message by message, compressed ones included (I7).

Each message is preceded by one byte of flags and four of its length (gRPC over HTTP/2,
"Length-Prefixed-Message"; gRPC-Web and Connect have the same). A secret is replaced by a
placeholder of its length, so lengths stay true. A compressed message is decoded beside the stream,
and the body is cut if it holds a secret. At the end of a message nothing is held back: in a call
that goes both ways, the next message may be the reply to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.encoded_scanner import EncodedScanner, Proportion, undecodable
from keyhole.inject.scrub import Scrubber

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles

PREFIX = 5
"""Bytes before a message: flags and length."""

_COMPRESSED = 0x01
_FLAGS = frozenset({0x00, 0x01, 0x02, 0x03, 0x80, 0x81})
"""Flags that have a meaning: 2 ends a stream of Connect, 0x80 marks trailers of gRPC-Web. None is a
character of a token, so no needle reaches from one message into the next."""


class MessageScanner:
    """One body on its way. After an exception nothing more may be passed."""

    __slots__ = ("_encoded", "_encoding", "_left", "_needles", "_plain", "_prefix", "_proportion")

    def __init__(self, needles: Needles, encoding: bytes) -> None:
        """`encoding` is that of compressed messages, in lower case; empty where none was named."""
        self._needles = needles
        self._encoding = encoding
        self._plain = Scrubber(needles)
        self._encoded: EncodedScanner | None = None
        """The scanner of the present message, if that is compressed."""
        self._proportion = Proportion()
        self._prefix = b""
        self._left = 0
        """Bytes of the message that are still to come."""

    @property
    def hits(self) -> int:
        """The number of needles that were replaced."""
        return self._plain.hits

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be passed on. Raises ResponseUnfit."""
        passed: list[bytes | memoryview] = []
        at, size = 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                passed.append(self._scan(piece))
                if not self._left:
                    passed.append(self._end_message())
                continue
            end = self._whole_until(data, at)
            if end:
                passed.append(self._plain.replace(data[at:end]))
                at = end
                continue
            wanted = PREFIX - len(self._prefix)
            self._prefix += data[at : at + wanted]
            at += wanted
            if len(self._prefix) == PREFIX:
                passed.append(self._begin_message())
        return b"".join(passed)

    def _whole_until(self, data: bytes, at: int) -> int:
        """The end of a message that begins here, if it is whole and not compressed; otherwise 0."""
        start = at + PREFIX
        if self._prefix or data[at] or start > len(data):
            return 0
        end = start + int.from_bytes(data[at + 1 : start])
        return end if end <= len(data) else 0

    def end(self) -> bytes:
        """The rest, once the origin has sent its last byte. Raises ResponseUnfit."""
        prefix, self._prefix = self._prefix, b""
        if not prefix and not self._left:
            return b""  # nothing is kept between two messages
        return b"".join((self._plain.feed(prefix), self._end_message()))

    def _begin_message(self) -> bytes:
        prefix, self._prefix = self._prefix, b""
        flags, self._left = prefix[0], int.from_bytes(prefix[1:])
        if flags not in _FLAGS:
            raise undecodable("a message has flags that have no meaning")
        if not flags & _COMPRESSED:
            # Attack: a secret whose first bytes are the bytes of a length.
            passed = bytes(self._plain.feed(prefix))
            return passed if self._left else passed + self._plain.end()
        if self._left:
            self._encoded = EncodedScanner(self._needles, self._encoding, self._proportion)
        return prefix

    def _scan(self, piece: bytes) -> bytes | memoryview:
        if self._encoded is not None:
            return self._encoded.feed(piece)
        return self._plain.feed(piece)

    def _end_message(self) -> bytes:
        encoded, self._encoded = self._encoded, None
        return self._plain.end() if encoded is None else encoded.end()
