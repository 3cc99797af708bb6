"""Searches a response on its way to the client, and replaces every secret in it or cuts it (I7).

Made by `response.py` for each response of an origin. It takes the origin's head and body and
returns those for the client; the client's HTTP machine frames them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.http.response import NO_LENGTH, Framing
from keyhole.inject.encoded_scanner import EncodedScanner
from keyhole.inject.event_scanner import EventScanner
from keyhole.inject.message_scanner import MessageScanner
from keyhole.inject.scrub import Scrubber
from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.gateway.git.responses import BodyRewriter
    from keyhole.http.field import Field
    from keyhole.http.response import ResponseHead
    from keyhole.inject.scrub import Needles

_NONE = Framing.NONE

Pieces = tuple[bytes | memoryview, ...]
"""Parts of a body, in order; any may be empty."""


def redact_head(needles: Needles, start: bytes, lines: list[bytes]) -> tuple[bytes, list[bytes]]:
    """A status line and fields without any secret: the same objects where there was none."""
    text = b"".join((start, *lines))
    clean = needles.replace(text)
    if clean is text:
        return start, lines
    start, *rows = clean.split(b"\r\n")[:-1]
    return start + b"\r\n", [row + b"\r\n" for row in rows]


class RedactedResponse(Struct, eq=False):
    """One response; `of` makes it when the head has arrived."""

    start: bytes
    lines: list[bytes]
    length: int
    has_body: bool
    _needles: Needles
    _rewriter: BodyRewriter | None = None
    _scanner: Scrubber | MessageScanner | EventScanner | EncodedScanner | None = None
    """The scanner of a body that arrives in pieces; a complete one needs none."""
    hits: int = 0
    """How many secrets were replaced; the head and a complete body count once each."""
    blind: bool = False
    """Whether its beginning was not searched; a search cannot begin in the middle."""

    @classmethod
    def of(
        cls, head: ResponseHead, needles: Needles, rewriter: BodyRewriter | None = None
    ) -> RedactedResponse:
        """Raises ResponseUnfit if the response cannot be searched, so that it cannot be passed
        on."""
        has_body = head.framing is not _NONE
        redacted = cls(head.start, head.lines, head.length, has_body, needles)
        # RFC 9112 §6.1: a response that cannot have a body must not announce one, not even empty.
        opaque = rewriter is not None or head.encoding or head.unreadable or head.messages
        # A gRPC call that fails at once is answered by fields alone; nothing may be added to them.
        if has_body and opaque and not (head.messages and head.length == 0):
            redacted._read_opaque(head, rewriter)
        elif has_body and head.events and needles:
            redacted._scanner = EventScanner(needles)
        return redacted

    def _read_opaque(self, head: ResponseHead, rewriter: BodyRewriter | None) -> None:
        """Prepare for a body that cannot be searched as it arrives."""
        self._rewriter = rewriter
        if rewriter is not None and head.encoding:
            raise ResponseUnfit(Reason.ENCODING_REFUSED, "it is encoded, and must be read")
        self.blind = not self._needles
        if self._needles:
            if head.unreadable:
                why = "its characters are not written so that they can be searched"
                raise ResponseUnfit(Reason.ENCODING_REFUSED, why)
            if head.messages and head.encoding:
                why = "its messages may be encoded, and their sequence is"
                raise ResponseUnfit(Reason.ENCODING_REFUSED, why)
            if head.messages:
                self._scanner = MessageScanner(self._needles, head.message_encoding)
            elif head.encoding:
                self._scanner = EncodedScanner(self._needles, head.encoding)
        # The length of an encoded response tells how well it compressed, and so something about its
        # content. The client would get it before the scan.
        if self._scanner is not None or rewriter is not None:
            self.length = NO_LENGTH

    def redact_head(self) -> None:
        """Search status line and fields, while the body is still to come."""
        start, self.lines = redact_head(self._needles, self.start, self.lines)
        if start is not self.start:
            self.start = start
            self.hits += 1

    def redact_whole(self, body: bytes) -> Pieces:
        """Search head and body together, when all is here.

        Raises Malformed where the body is malformed, as `redact` and `end` do.
        """
        if self._rewriter is not None or self._scanner is not None:
            self.redact_head()
            return self.redact(body)
        needles = self._needles
        if needles.may_be_in(b"".join((self.start, *self.lines, body))):
            self.redact_head()
            clean = needles.replace(body)
            if clean is not body:
                self.hits += 1
            return (clean,)
        return (body,)

    def redact(self, data: bytes | memoryview) -> Pieces:
        """The bytes that may be passed on now."""
        if self._rewriter is not None:
            data = self._rewriter.feed(bytes(data))
        elif isinstance(data, memoryview) and self.length >= 0:
            scanner = self._find_scanner()
            if isinstance(scanner, Scrubber):
                return scanner.pass_on(data)
        return (self._scan(data),)

    def end(self) -> bytes:
        """The rest of the body, once the origin has sent its last byte."""
        rest = b""
        if self._rewriter is not None:
            rest = bytes(self._scan(self._rewriter.end()))
        scanner = self._scanner
        if scanner is not None:
            rest += scanner.end()
            if not isinstance(scanner, EncodedScanner):
                self.hits += scanner.hits
        return rest

    def redact_trailers(self, trailers: Iterable[Field]) -> bytes:
        """The trailers, as lines."""
        lines = b"".join([field.line for field in trailers])
        return self._needles.replace(lines) if self._needles else lines

    def _find_scanner(self) -> Scrubber | MessageScanner | EventScanner | EncodedScanner | None:
        if self._scanner is None and self._needles:
            self._scanner = Scrubber(self._needles)
        return self._scanner

    def _scan(self, data: bytes | memoryview) -> bytes | memoryview:
        scanner = self._find_scanner()
        if isinstance(scanner, Scrubber):
            data = scanner.feed(data)
        elif scanner is not None:
            data = scanner.feed(bytes(data))
        return data
