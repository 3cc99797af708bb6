"""A compressed answer, decoded beside the stream so that a secret in it is seen (I7).

The gateway asks for answers as they are; one that is encoded all the same goes through here. Its
bytes pass unchanged, and none before everything that it decodes to is known to hold no secret. One
that does is cut, since a stand-in cannot be put into a compressed text.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING

from keyhole.inject.scrub import Scrubber

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles

MAX_RATIO = 200
"""Bytes that one byte may decode to: text of real services stays below 50, a bomb comes near the
format's 1032, and to search what it hides takes longer than to send it (I9)."""

UNJUDGED = 1024 * 1024
"""Decoded bytes before the ratio is looked at: a short answer may well be a long blank."""

MAX_DECODED = 64 * 1024**3
"""Bytes that an answer may decode to (I9): beyond any artefact."""

DECODED_AT_ONCE = 256 * 1024
"""Bytes that are decoded before they are searched and forgotten."""

FED_AT_ONCE = 16 * 1024
"""Bytes that are decoded and let go together, about a TLS record. What follows the end of a gzip
member is copied for the next one, so thousands of tiny members in one long piece would be slow."""

MAX_WAITING = 1024 * 1024
"""Compressed bytes that may wait (I9): a few pieces do, unless they decode to nothing at all."""

_GZIP = zlib.MAX_WBITS | 16
_WBITS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": None}


class Reflected(Exception):
    """A secret is in what the upstream sends, where it cannot be replaced."""


class Undecodable(Exception):
    """What the upstream sends cannot be searched; `why` is for a person."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class EncodedScanner:
    """One compressed body on its way. After an exception nothing more may be passed.

    A piece goes on when all that it decodes to was cleared by the rule of the Scrubber. Its last
    bits may begin the symbol that comes next, so of a secret that follows, the first character can
    be known and no more.
    """

    __slots__ = (
        "_allowed",
        "_begun",
        "_decoded",
        "_decoder",
        "_fed",
        "_marks",
        "_over",
        "_pending",
        "_plain",
        "_raw",
        "_wbits",
    )

    def __init__(self, needles: Needles, encoding: bytes) -> None:
        """`encoding` is a Content-Encoding in lower case. May raise Undecodable."""
        if encoding not in _WBITS:
            raise Undecodable("the answer is in another encoding than gzip and deflate")
        self._wbits = _WBITS[encoding]
        """None until it is known whether `deflate` means zlib or, as with some servers, raw."""
        self._decoder: zlib._Decompress | None = None
        self._begun = b""
        self._over = False
        """Whether a member has ended."""
        self._plain = Scrubber(needles)
        # A gzip header may hold a file name and a comment, which are not in what it decodes to.
        self._raw = Scrubber(needles)
        self._fed = 0
        self._decoded = 0
        self._marks: deque[tuple[int, int]] = deque()
        """How many bytes were fed and decoded at the end of each piece that has to wait."""
        self._allowed = 0
        """How many of the fed bytes decode to what was cleared."""
        self._pending = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Compressed bytes that may go on. Raises Reflected or Undecodable."""
        for at in range(0, len(data), FED_AT_ONCE):
            piece = data[at : at + FED_AT_ONCE]
            self._fed += len(piece)
            self._search(self._raw, piece)
            self._decode(piece)
            self._marks.append((self._fed, self._decoded))
        self._pending += data
        return self._release()

    def end(self) -> bytes:
        """The rest, if the body was whole."""
        if self._begun or self._decoder is not None:
            raise Undecodable("the compressed answer has no end")
        for scrubber in (self._raw, self._plain):
            scrubber.end()
            self._search(scrubber, b"")
        return self._release()

    def _decode(self, piece: bytes) -> None:
        if self._wbits is None:
            piece = self._begun + piece
            self._begun = piece[:1] if len(piece) == 1 else b""
            if self._begun:
                return
            self._wbits = zlib.MAX_WBITS if _is_zlib(piece) else -zlib.MAX_WBITS
        while piece:
            piece = self._decode_member(piece, self._wbits)

    def _decode_member(self, data: bytes, wbits: int) -> bytes:
        """Decode and search; what follows the end of a member is given back."""
        if self._decoder is None:
            # RFC 1952 §2.2: members "simply appear one after another in the file".
            if self._over and wbits != _GZIP:
                raise Undecodable("something follows the compressed answer")
            self._decoder = zlib.decompressobj(wbits)
        decoder, full = self._decoder, True
        while (data or full) and not decoder.eof:
            try:
                text = decoder.decompress(data, DECODED_AT_ONCE)
            except zlib.error:
                raise Undecodable("the answer is not compressed as it says") from None
            data, full = decoder.unconsumed_tail, len(text) == DECODED_AT_ONCE
            self._decoded += len(text)
            if self._decoded > min(MAX_DECODED, max(UNJUDGED, MAX_RATIO * self._fed)):
                raise Undecodable("the compressed answer is out of proportion")
            self._search(self._plain, text)
        if not decoder.eof:
            return b""
        self._decoder, self._over = None, True
        return decoder.unused_data

    def _search(self, scrubber: Scrubber, text: bytes) -> None:
        scrubber.feed(text)
        if scrubber.hits:
            raise Reflected

    def _release(self) -> bytes:
        cleared = self._decoded - self._plain.held
        while self._marks and self._marks[0][1] <= cleared:
            self._allowed = self._marks.popleft()[0]
        waits = self._fed - min(self._allowed, self._fed - self._raw.held)
        cut = len(self._pending) - waits
        passed = bytes(self._pending[:cut])
        del self._pending[:cut]
        if waits > MAX_WAITING:
            raise Undecodable("the compressed answer does not go on")
        return passed


def _is_zlib(data: bytes) -> bool:
    """RFC 1950 §2.2: method 8, a window that exists, and a check over both bytes."""
    return data[0] & 0x0F == 8 and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0
