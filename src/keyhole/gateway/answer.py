"""An answer on its way back: framed anew, and scanned so that no secret is in it (I7).

Made by `exchange.py` for each answer of an origin. Bytes in, bytes for the client out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.encoded import EncodedScanner, Undecodable
from keyhole.inject.scrub import Needles, Scrubber
from keyhole.wire.httpresponse import Framing, ResponseHead

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.errand import Rewriter
    from keyhole.wire.httpfield import Field

_CLOSE = b"Connection: close\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n"


_NONE, _, _CHUNKS, _UNTIL_CLOSED = Framing


class Answer:
    """One answer: its head is known when it is made."""

    __slots__ = (
        "_chunked", "_head", "_needles", "_rewriter", "_scanner", "blind", "closes", "hits",
    )  # fmt: skip

    def __init__(
        self,
        head: ResponseHead,
        needles: Needles,
        http10: bool,
        close: bool,
        rewriter: Rewriter | None = None,
    ) -> None:
        """May raise Undecodable: the answer cannot be scanned, so it cannot be passed."""
        framing = head.framing
        self._needles = needles
        # RFC 9112 §6.1: an answer that cannot have a body must not announce one, not even an empty.
        self._rewriter = rewriter = rewriter if framing is not _NONE else None
        if rewriter is not None and head.encoding:
            raise Undecodable("it is encoded, and must be read")
        self._scanner: Scrubber | EncodedScanner | None = None
        """For a body in pieces; one that comes whole needs none."""
        self.hits = 0
        """How often a secret was replaced; of the head and of a whole body, whether."""
        opaque = head.encoding or head.unreadable or rewriter is not None
        self.blind = bool(opaque) and framing is not _NONE and not needles
        """Whether nothing was searched for when it began, and cannot be in its midst."""
        if opaque and framing is not _NONE and needles:
            if head.unreadable:
                raise Undecodable("its characters are not written so that they can be searched")
            if head.encoding:
                self._scanner = EncodedScanner(needles, head.encoding)
        # The length of an encoded answer tells how well it compressed, and so what is in it; it
        # would leave before the scan.
        hides_length = self._scanner is not None or rewriter is not None
        unbounded = framing is _CHUNKS or framing is _UNTIL_CLOSED or hides_length
        self._chunked = unbounded and not http10
        self.closes = close or (unbounded and http10)
        """Whether the client's connection ends with this answer."""
        lines = [head.start, *head.lines]
        if self._chunked:
            lines.append(_CHUNKED)
        elif head.length >= 0:
            lines.append(b"Content-Length: %d\r\n" % head.length)
        if self.closes:
            lines.append(_CLOSE)
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def begin(self) -> bytes:
        """The head, while its body is still to come."""
        return self._replaced(self._head)

    def whole(self, body: bytes) -> bytes:
        """Head and body, when all is here: searched at once, and nothing has to wait.

        Raises Malformed where a body is not what it should be, as `body` and `end` do.
        """
        if self._rewriter is not None or self._scanner is not None:
            return b"".join((self.begin(), *self.body(body)))
        return self._replaced(self._head + body)

    def body(self, data: bytes | memoryview) -> tuple[bytes | memoryview, ...]:
        """What may go on now, in pieces."""
        if self._rewriter is not None:
            data = self._rewriter.feed(bytes(data))
        elif isinstance(data, memoryview) and not self._chunked:
            scanner = self._find_scanner()
            if isinstance(scanner, Scrubber):
                return scanner.pass_on(data)
        data = self._scanned(data)
        return (self._frame(data) if self._chunked and data else data,)

    def _find_scanner(self) -> Scrubber | EncodedScanner | None:
        if self._scanner is None and self._needles:
            self._scanner = Scrubber(self._needles)
        return self._scanner

    def _scanned(self, data: bytes | memoryview) -> bytes | memoryview:
        scanner = self._find_scanner()
        if isinstance(scanner, Scrubber):
            data = scanner.feed(data)
        elif scanner is not None:
            data = scanner.feed(bytes(data))
        return data

    def end(self, trailers: Iterable[Field]) -> bytes:
        """The rest, once the origin has said its last."""
        rest = b""
        if self._rewriter is not None:
            rest = bytes(self._scanned(self._rewriter.end()))
        scanner = self._scanner
        if scanner is not None:
            rest += scanner.end()
            if isinstance(scanner, Scrubber):
                self.hits += scanner.hits
        if not self._chunked:
            return rest
        lines = b"".join(field.line for field in trailers)
        if self._needles:
            lines = self._needles.replace(lines)
        return b"%b0\r\n%b\r\n" % (self._frame(rest) if rest else b"", lines)

    def _replaced(self, text: bytes) -> bytes:
        clean = self._needles.replace(text)
        if clean is not text:
            self.hits += 1
        return clean

    @staticmethod
    def _frame(data: bytes | memoryview) -> bytes:
        return b"".join((b"%x\r\n" % len(data), data, b"\r\n"))
