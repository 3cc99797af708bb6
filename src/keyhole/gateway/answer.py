"""An answer on its way back: framed anew, and scanned so that no secret is in it (I7).

Made by `exchange.py` for each answer of an origin. Bytes in, bytes for the client out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from keyhole.inject.encoded import EncodedScanner, Undecodable
from keyhole.inject.scrub import Needles, Scrubber
from keyhole.wire.httpresponse import Framing, ResponseHead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.errand import Rewriter
    from keyhole.wire.httpfield import Field

# Charsets in which ASCII is not written as ASCII; a client may ask for one (I7).
_UNREADABLE = re.compile(
    rb"content-type:.*charset\s*=\s*[\"']?\s*"
    rb"(?:utf-?(?:16|32|7)|ucs|iso-10646|unicode|ibm|cp(?:037|500|1047)|ebcdic|iso-2022|hz-)",
    re.IGNORECASE,
)
_CLOSE = b"Connection: close\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"


class Answer:
    """One answer: its head is known when it is made."""

    __slots__ = ("_chunked", "_needles", "_replaced", "_rewriter", "_scanner", "closes", "head")

    def __init__(
        self,
        head: ResponseHead,
        needles: Needles,
        *,
        http10: bool,
        method: str,
        close: bool,
        rewriter: Rewriter | None = None,
    ) -> None:
        """May raise Undecodable: the answer cannot be scanned, so it cannot be passed."""
        body = head.framing is not Framing.NONE
        self._needles = needles
        self._replaced = 0
        # RFC 9112 §6.1: an answer that cannot have a body must not announce one, not even an empty.
        self._rewriter = rewriter = rewriter if body else None
        if rewriter is not None and head.encoding:
            raise Undecodable("it is encoded, and must be read")
        self._scanner: Scrubber | EncodedScanner | None = None
        if needles and body:
            if any(_UNREADABLE.match(line) for line in head.lines):
                raise Undecodable("its characters are not written so that they can be searched")
            self._scanner = (
                EncodedScanner(needles, head.encoding) if head.encoding else Scrubber(needles)
            )
        # The length of an encoded answer tells how well it compressed, and so what is in it; it
        # would leave before the scan.
        hides_length = isinstance(self._scanner, EncodedScanner) or rewriter is not None
        unbounded = head.framing in (Framing.CHUNKED, Framing.CLOSE) or hides_length
        self._chunked = unbounded and not http10
        self.closes = close or (unbounded and http10)
        """Whether the client's connection ends with this answer."""
        lines = [head.start, *head.lines]
        if self._chunked:
            lines.append(_CHUNKED)
        elif head.framing is Framing.LENGTH or (not body and head.length >= 0):
            lines.append(b"Content-Length: %d\r\n" % head.length)
        if self.closes:
            lines.append(_CLOSE)
        lines.append(b"\r\n")
        text = b"".join(lines)
        self.head = needles.replace(text) if needles else text

    @property
    def hits(self) -> int:
        """How often a secret was replaced in the body."""
        return self._scanner.hits if isinstance(self._scanner, Scrubber) else self._replaced

    def body(self, data: bytes) -> bytes:
        """What may go on now. Raises Malformed where a body is not what it should be."""
        if self._rewriter is not None:
            data = self._rewriter.feed(data)
        if self._scanner is not None:
            data = self._scanner.feed(data)
        return self._frame(data) if self._chunked and data else data

    def whole(self, data: bytes) -> bytes:
        """All of a body: nothing has to wait for what might follow."""
        if self._rewriter is not None or not isinstance(self._scanner, Scrubber):
            return self.body(data)
        clean = self._needles.replace(data)
        self._replaced = int(clean is not data)
        self._scanner = None
        return self._frame(clean) if self._chunked else clean

    def end(self, trailers: Iterable[Field]) -> bytes:
        """The rest, once the origin has said its last."""
        rest = self._rewriter.end() if self._rewriter is not None else b""
        if self._scanner is not None:
            rest = self._scanner.feed(rest) + self._scanner.end()
        if not self._chunked:
            return rest
        lines = b"".join(field.line for field in trailers)
        if self._needles:
            lines = self._needles.replace(lines)
        return b"%b0\r\n%b\r\n" % (self._frame(rest) if rest else b"", lines)

    @staticmethod
    def _frame(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)
