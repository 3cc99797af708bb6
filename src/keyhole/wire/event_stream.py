"""Server-sent events: a stream read into events, and events written again.

What is written is made of what was read, so that no client can see other events than were judged:
lines end in LF, one field a line, no byte order mark, no unknown field.
"""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Malformed

MEDIA_TYPE = "text/event-stream"

MAX_LABEL = 1024
"""Characters of an event's name or id; a longer one is dropped."""

MAX_PENDING = 4096
"""Fields of one event: a message in as many lines is not sent by any server."""

_BREAKS = re.compile(rb"\r\n|\n|\r")
_LABEL = re.compile(rb"[!-~]{1,%d}" % MAX_LABEL)
_RETRY = re.compile(rb"[0-9]{1,9}")
_MARK = b"\xef\xbb\xbf"
_JSON_BREAKS = re.compile("[\x85\u2028\u2029]")


class StreamEvent(Struct, frozen=True):
    """One event. A stream's comments are events without any field."""

    name: str = ""
    data: bytes | None = None
    id: str | None = None
    retry: str = ""


class EventStreamReader:
    """Splits a stream into events. `most` bounds the bytes of one."""

    __slots__ = ("_begun", "_data", "_fields", "_held", "_id", "_most", "_name", "_rest", "_retry",
                 "_skip")  # fmt: skip

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = False
        self._skip = False
        """Whether an LF that comes next belongs to the CR before."""
        self._rest: list[bytes] = []
        """The pieces of a line that has not ended."""
        self._held = 0
        self._clear()

    @property
    def held(self) -> int:
        """Bytes of an event that has not ended."""
        return self._held

    def _clear(self) -> None:
        self._name = ""
        self._data: list[bytes] | None = None
        self._id: str | None = None
        self._retry = ""
        self._fields = 0

    def feed(self, piece: bytes) -> list[StreamEvent]:
        """The events that end in this piece. Raises Malformed."""
        if self._skip and piece:
            piece = piece.removeprefix(b"\n")
            self._skip = False
        if not piece:
            return []
        self._skip = piece.endswith(b"\r")
        first, *others = _BREAKS.split(piece)
        self._rest.append(first)
        self._held += len(first)
        found: list[StreamEvent] = []
        for line in others:
            self._take(b"".join(self._rest), found)
            self._rest = [line]
            self._held += len(line)
        self._check()
        return found

    def _take(self, line: bytes, found: list[StreamEvent]) -> None:
        self._check()
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_MARK)
        if line:
            self._field(line)
            return
        if self._fields:
            data = None if self._data is None else b"\n".join(self._data)
            found.append(StreamEvent(self._name, data, self._id, self._retry))
            self._clear()
        self._held = 0

    def _check(self) -> None:
        if self._held > self._most or self._fields > MAX_PENDING:
            raise Malformed(f"an event of its stream has more than {self._most} bytes")

    def _field(self, line: bytes) -> None:
        self._fields += 1
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data = self._data or []
                self._data.append(value)
            case b"event":
                self._name = value.decode("ascii") if _LABEL.fullmatch(value) else "?"
            case b"id":
                self._id = value.decode("ascii") if _LABEL.fullmatch(value) else ""
            case b"retry":
                self._retry = value.decode("ascii") if _RETRY.fullmatch(value) else ""


def write_event(event: StreamEvent) -> bytes:
    """The event as a stream has it; one without a field is a comment, which keeps a client
    waiting."""
    lines = []
    if event.name:
        lines.append(b"event: " + event.name.encode("ascii"))
    if event.id is not None:
        lines.append(b"id: " + event.id.encode("ascii") if event.id else b"id")
    if event.retry:
        lines.append(b"retry: " + event.retry.encode("ascii"))
    if event.data is not None:
        lines += [b"data: " + line for line in event.data.split(b"\n")]
    return b"\n".join(lines or [b":"]) + b"\n\n"


def escape_breaks(data: bytes) -> bytes:
    """JSON in which no character is left that some readers take for a line's end.

    Attack: Python's `splitlines`, which clients have used for this, also ends a line at U+2028; so
    a text with two of them could hold a whole event of its own. Such characters stand only in
    texts, where an escape means the same.
    """
    if b"\xe2\x80" not in data and b"\xc2\x85" not in data:
        return data
    text = data.decode("utf-8", "surrogateescape")
    text = _JSON_BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "surrogateescape")
