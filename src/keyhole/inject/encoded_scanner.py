"""Searches a compressed response by decoding it beside the stream (I7).

The gateway asks for uncompressed responses; one that is compressed all the same goes through here.
Its bytes pass unchanged, but none before everything that it decodes to was searched. A response
that contains a secret is cut, since a placeholder cannot be put into compressed text.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING

from keyhole.inject.scrub import Scrubber
from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles

MAX_RATIO = 200
"""Decoded bytes for each compressed one: text of real services stays below 50, and a bomb comes
near the format's 1032. Searching such a bomb takes longer than sending it (I9)."""

UNJUDGED = 1024 * 1024
"""Decoded bytes before the ratio is checked: a short response may be a long run of blanks."""

MAX_DECODED = 64 * 1024**3
"""Bytes that a response may decode to (I9): more than any artefact has."""

DECODED_AT_ONCE = 256 * 1024
"""Bytes that are decoded before they are searched and forgotten."""

FED_AT_ONCE = 16 * 1024
"""Bytes that are decoded and passed together, about a TLS record. The bytes after a gzip member are
copied for the next one, so thousands of tiny members in one long piece would be slow."""

MAX_WAITING = 1024 * 1024
"""Compressed bytes that may wait (I9). Usually a few pieces do, unless they decode to nothing."""

_GZIP = zlib.MAX_WBITS | 16
_WBITS = {b"gzip": _GZIP, b"x-gzip": _GZIP, b"deflate": None}


class Proportion:
    """The bytes that were fed and decoded: of one body, or of all its messages.

    Attack: thousands of short messages, each of which may be a long run of blanks (I12).
    """

    __slots__ = ("decoded", "fed")

    def __init__(self) -> None:
        self.fed = 0
        self.decoded = 0

    def check(self, decoded: int) -> None:
        """Count decoded bytes. Raises ResponseUnfit."""
        self.decoded += decoded
        if self.decoded > min(MAX_DECODED, max(UNJUDGED, MAX_RATIO * self.fed)):
            raise undecodable("the compressed answer is out of proportion")


class EncodedScanner:
    """One compressed body on its way. After an exception nothing more may be passed.

    A piece is passed when the Scrubber has cleared everything that it decodes to. Its last bits may
    be the beginning of the next symbol, so of a secret that follows, at most the first character
    can be learnt.
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
        "_proportion",
        "_raw",
        "_wbits",
    )

    def __init__(
        self, needles: Needles, encoding: bytes, proportion: Proportion | None = None
    ) -> None:
        """`encoding` is a Content-Encoding in lower case. May raise ResponseUnfit.

        `proportion` is shared by all parts of one response.
        """
        if encoding not in _WBITS:
            raise undecodable("the answer is in another encoding than gzip and deflate")
        self._wbits = _WBITS[encoding]
        """None until it is known whether `deflate` means zlib or, as with some servers, raw."""
        self._decoder: zlib._Decompress | None = None
        self._begun = b""
        self._over = False
        """Whether a member has ended."""
        self._plain = Scrubber(needles)
        # A gzip header may hold a file name and a comment, which are not part of the decoded text.
        self._raw = Scrubber(needles)
        self._proportion = proportion or Proportion()
        self._fed = 0
        self._decoded = 0
        self._marks: deque[tuple[int, int]] = deque()
        """The numbers of bytes fed and decoded at the end of each piece that waits."""
        self._allowed = 0
        """The number of fed bytes whose decoded text was cleared."""
        self._pending = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Compressed bytes that may be passed on. Raises ResponseUnfit."""
        for at in range(0, len(data), FED_AT_ONCE):
            piece = data[at : at + FED_AT_ONCE]
            self._fed += len(piece)
            self._proportion.fed += len(piece)
            self._search(self._raw, piece)
            self._decode(piece)
            self._marks.append((self._fed, self._decoded))
        self._pending += data
        return self._release()

    def end(self) -> bytes:
        """The rest, if the body was whole."""
        if self._begun or self._decoder is not None:
            raise undecodable("the compressed answer has no end")
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
        """Decode and search; return the bytes after the end of a member."""
        if self._decoder is None:
            # RFC 1952 §2.2: members "simply appear one after another in the file".
            if self._over and wbits != _GZIP:
                raise undecodable("something follows the compressed answer")
            self._decoder = zlib.decompressobj(wbits)
        decoder, full = self._decoder, True
        while (data or full) and not decoder.eof:
            try:
                text = decoder.decompress(data, DECODED_AT_ONCE)
            except zlib.error:
                raise undecodable("the answer is not compressed as it says") from None
            data, full = decoder.unconsumed_tail, len(text) == DECODED_AT_ONCE
            self._decoded += len(text)
            self._proportion.check(len(text))
            self._search(self._plain, text)
        if not decoder.eof:
            return b""
        self._decoder, self._over = None, True
        return decoder.unused_data

    def _search(self, scrubber: Scrubber, text: bytes) -> None:
        scrubber.feed(text)
        if scrubber.hits:
            raise ResponseUnfit(Reason.SECRET_REFLECTED)

    def _release(self) -> bytes:
        cleared = self._decoded - self._plain.held
        while self._marks and self._marks[0][1] <= cleared:
            self._allowed = self._marks.popleft()[0]
        waits = self._fed - min(self._allowed, self._fed - self._raw.held)
        cut = len(self._pending) - waits
        passed = bytes(self._pending[:cut])
        del self._pending[:cut]
        if waits > MAX_WAITING:
            raise undecodable("the compressed answer does not go on")
        return passed


def _is_zlib(data: bytes) -> bool:
    """RFC 1950 §2.2: method 8, a window that exists, and a check over both bytes."""
    return data[0] & 0x0F == 8 and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0


def undecodable(why: str) -> ResponseUnfit:
    """The response cannot be searched, so it cannot be passed (I7)."""
    return ResponseUnfit(Reason.ENCODING_REFUSED, why)
