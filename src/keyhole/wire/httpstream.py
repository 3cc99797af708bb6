"""All requests of one plain HTTP connection, followed by their framing (RFC 9112 §6, 7.1).

Called by the gateway's gate for port 80. Every head is judged before a byte of it goes on (I4);
bodies pass as they come. Responses are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from keyhole.wire.httphead import BadHead, Head, parse_head
from keyhole.wire.step import Step

MAX_HEAD = 64 * 1024
"""Bytes of a request's head."""

MAX_CHUNK_LINE = 18
"""Bytes of a chunk's size line: 16 digits and the line's end. Extensions are refused."""

MALFORMED = "http-malformed"

_WHY = {
    "host-mismatch": "Host is not the name that was connected to",
    "body-not-granted": "the request has a body, which HTTP does not define for its method",
}

_END_OF_HEAD = b"\r\n\r\n"
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,12}")
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,12})\r\n")

Judge = Callable[[Head], str | None]


class HttpStream:
    """Follows the client's side of a connection."""

    __slots__ = ("_buffer", "_judge", "_left", "_searched", "_state", "why")

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._buffer = bytearray()
        self._left = 0
        self._searched = 0
        # Plain functions, not bound methods: those would be a reference cycle per connection.
        self._state: Callable[[HttpStream], bytes | str | None] = HttpStream._head
        self.why = ""
        """In words, why the stream was refused."""

    def feed(self, data: bytes) -> Step:
        """Judge the next bytes."""
        self._buffer += data
        cleared = []
        while self._buffer:
            passed = self._state(self)
            if passed is None:
                break
            if isinstance(passed, str):
                return Step(refusal=passed)
            cleared.append(passed)
        return Step(b"".join(cleared))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _head(self) -> bytes | str | None:
        end = self._buffer.find(_END_OF_HEAD, max(0, self._searched - 3))
        self._searched = len(self._buffer)
        if max(end, 0) > MAX_HEAD or (end < 0 and self._searched > MAX_HEAD):
            return self._refuse(MALFORMED, "the request's head is too long")
        if end < 0:
            return None
        self._searched = 0
        head = parse_head(bytes(self._buffer[:end]))
        if isinstance(head, BadHead):
            return self._refuse(head.reason, head.why)
        refusal = self._judge(head)
        if refusal is not None:
            return self._refuse(refusal, _WHY.get(refusal, "policy does not allow it"))
        if head.chunked:
            self._state = HttpStream._chunk_line
        elif head.length:
            self._left, self._state = head.length, HttpStream._body
        return self._take(end + len(_END_OF_HEAD))

    def _body(self) -> bytes:
        taken = self._take(self._left)
        self._left -= len(taken)
        if not self._left:
            self._state = HttpStream._head
        return taken

    def _chunk_line(self) -> bytes | str | None:
        if whole := self._whole_chunks():
            return self._take(whole)
        end = self._buffer.find(b"\r\n", 0, MAX_CHUNK_LINE)
        if end < 0 and len(self._buffer) < MAX_CHUNK_LINE:
            return None
        if end < 0 or not _CHUNK_SIZE.fullmatch(self._buffer, 0, end):
            # `int(b"0x1f", 16)` and b"+1f" would do; an origin may think otherwise.
            return self._refuse(MALFORMED, "a chunk's size is not a plain hexadecimal number")
        size = int(self._buffer[:end], 16)
        self._left, self._state = (size, HttpStream._chunk) if size else (0, HttpStream._chunk_end)
        return self._take(end + 2)

    def _whole_chunks(self) -> int:
        """Bytes of the chunks that have come from their size to their end, but for the last one.

        A loop of its own, since 256 KiB can hold 43,000 chunks (I12).
        """
        buffer, at = self._buffer, 0
        read_size = _SIZE_LINE.match
        while found := read_size(buffer, at):
            end = found.end() + int(found[1], 16)
            if end == found.end() or buffer[end : end + 2] != b"\r\n":
                break
            at = end + 2
        return at

    def _chunk(self) -> bytes:
        taken = self._take(self._left)
        self._left -= len(taken)
        if not self._left:
            self._left, self._state = 1, HttpStream._chunk_end
        return taken

    def _chunk_end(self) -> bytes | str | None:
        """The empty line after a chunk (`_left` is 1) or after the last one; no trailers."""
        if len(self._buffer) < 2 and self._buffer == b"\r":
            return None
        if self._buffer[:2] != b"\r\n":
            return self._refuse(MALFORMED, "a chunk does not end with its size")
        self._state = HttpStream._chunk_line if self._left else HttpStream._head
        self._left = 0
        return self._take(2)

    def _refuse(self, reason: str, why: str) -> str:
        self.why = why
        return reason
