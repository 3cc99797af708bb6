"""The rows of the log that a filter passes, oldest first, kept and extended as the log grows.

Time, session, host, service, kind and verdict are compared by columns. Text is looked for in the
lines themselves, newest first, for a bounded time: a view says how far back it searched.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.audit.log_line import parse_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.app.monitor.log_columns import LogColumns, Names
    from keyhole.audit.log_line import LogRecord

SEARCH_SECONDS = 3.0
"""How long one search may read lines; a million take about two seconds."""

WINDOW = 1024 * 1024
"""Bytes of a file that a search reads at once."""

MAX_WINDOWS = 8
"""Files of which a search keeps what it read: sessions that ran at the same time."""

MAX_VIEWS = 8
"""Filters whose rows are kept; a page has one at a time."""

_DENIED = {"allow": 0, "deny": 1}
_PREV = len(',"prev":""}') + 64
"""Bytes at a line's end that a search leaves out: hex digits that would be found by chance."""


class EventFilter(Struct, frozen=True):
    """A filter of events; an empty text passes all."""

    session: str = ""
    """The beginning of an id."""
    host: str = ""
    """A part of the name, or with `*.` before a name, its subdomains."""
    service: str = ""
    kind: str = ""
    verdict: str = ""
    since: float | None = None
    until: float | None = None
    text: str = ""


class LogView:
    """The rows of one filter."""

    def __init__(self, columns: LogColumns, wanted: EventFilter) -> None:
        self.wanted = wanted
        self.generation = columns.generation
        self.rows: list[int] | range = range(0)
        self.unsearched = 0
        """Older rows that were not searched for the text, for want of time."""
        self._seen = 0

    def extend(self, columns: LogColumns) -> None:
        """Add the rows that came since."""
        first, end = self._seen, len(columns)
        if first == end:
            return
        self._seen = end
        if self.wanted == EventFilter():
            self.rows = range(end)
            return
        found = _matching(columns, self.wanted, first, end)
        if self.wanted.text:
            found, left = _containing(columns, found, self.wanted.text)
            self.unsearched += left
        self.rows = [*self.rows, *found]


class LogViews:
    """The views that were asked for last."""

    def __init__(self, columns: LogColumns) -> None:
        self._columns = columns
        self._kept: dict[EventFilter, LogView] = {}

    def of(self, wanted: EventFilter) -> LogView:
        """The view of a filter, up to the newest row."""
        view = self._kept.pop(wanted, None)
        if view is None or view.generation != self._columns.generation:
            view = LogView(self._columns, wanted)
        view.extend(self._columns)
        self._kept[wanted] = view  # the last asked for is the last to be dropped
        while len(self._kept) > MAX_VIEWS:
            del self._kept[next(iter(self._kept))]
        return view


def _matching(columns: LogColumns, wanted: EventFilter, first: int, end: int) -> Sequence[int]:
    found: Sequence[int] = range(first, end)
    if wanted.since is not None and first == 0:
        found = range(bisect_left(columns.at, wanted.since), end)
    if wanted.until is not None:
        found = [row for row in found if columns.at[row] < wanted.until]
    if wanted.verdict:
        value = _DENIED.get(wanted.verdict, 2)
        found = [row for row in found if columns.denied[row] == value]
    for column, names, marked in (
        (columns.session, columns.sessions, _marked(columns.sessions, "session", wanted)),
        (columns.kind, columns.kinds, _marked(columns.kinds, "kind", wanted)),
        (columns.service, columns.services, _marked(columns.services, "service", wanted)),
        (columns.host, columns.hosts, _marked(columns.hosts, "host", wanted)),
    ):
        if marked is not None and len(names.texts):
            found = [row for row in found if marked[column[row]]]
    return found


def _marked(names: Names, member: str, wanted: EventFilter) -> bytearray | None:
    text: str = getattr(wanted, member).lower()
    if not text:
        return None
    if member == "session":
        return names.marked(lambda name: name.startswith(text))
    if member == "host" and text.startswith("*."):
        return names.marked(lambda name: name.lower().endswith(text[1:]))
    if member == "host":
        return names.marked(lambda name: text in name.lower())
    return names.marked(lambda name: name.lower() == text)


def _containing(columns: LogColumns, rows: Sequence[int], text: str) -> tuple[list[int], int]:
    """The rows whose line has the text, and how many older ones were not read."""
    text = text.lower()
    needle = json.dumps(text)[1:-1].lower().encode("ascii")
    windows = _Windows(columns, time.monotonic() + SEARCH_SECONDS)
    found: list[int] = []
    left = 0
    try:
        for number, row in enumerate(reversed(rows)):
            try:
                line = windows.line(row, needle)
            except TimeoutError:
                left = len(rows) - number
                break
            if line is not None and _says(parse_line(line), text):
                found.append(row)
    finally:
        windows.close()
    return found[::-1], left


def _says(record: LogRecord | None, text: str) -> bool:
    """Whether a text of the event has it: not the name of a member, which every line has."""
    if record is None:
        return False
    texts = (record.session, record.kind, record.reason, record.rule, record.host)
    return any(text in str(each).lower() for each in (*texts, *record.details.values()))


class _Windows:
    """The parts of files that a search reads: one of each file, since the rows of sessions that ran
    at the same time alternate."""

    def __init__(self, columns: LogColumns, deadline: float) -> None:
        """Nothing is read after `deadline`, of the monotonic clock."""
        self._columns = columns
        self._deadline = deadline
        self._kept: dict[int, _Window] = {}

    def line(self, row: int, needle: bytes) -> bytes | None:
        """The line of a row, if it may have the text. Raises TimeoutError."""
        number, offset = self._columns.place(row)
        window = self._kept.pop(number, None)
        if window is None:
            while len(self._kept) >= MAX_WINDOWS:
                self._kept.pop(next(iter(self._kept))).close()
            window = _Window(self._columns.open_file(number))
        self._kept[number] = window  # the last read is the last to be dropped
        end = offset + self._columns.length(row)
        if not window.covers(offset, end):
            if time.monotonic() > self._deadline:
                raise TimeoutError
            window.read(end)
        return window.line(offset, end, needle)

    def close(self) -> None:
        """Close the files."""
        for window in self._kept.values():
            window.close()
        self._kept.clear()


class _Window:
    """A part of one file, so that lines side by side are read at once."""

    def __init__(self, descriptor: int | None) -> None:
        """Takes the descriptor over; None for a file that was removed."""
        self._descriptor = descriptor
        self._start = 0
        self._data = b""
        self._lower = b""

    def covers(self, start: int, end: int) -> bool:
        """Whether these bytes of the file were read."""
        return self._start <= start and end <= self._start + len(self._data)

    def read(self, end: int) -> None:
        """Read the bytes before `end`: rows are searched from the newest on."""
        self._start = max(0, end - WINDOW)
        self._data = b""
        if self._descriptor is not None:
            self._data = os.pread(self._descriptor, end - self._start, self._start)
        self._lower = self._data.lower()

    def line(self, offset: int, end: int, needle: bytes) -> bytes | None:
        """The line between these, if it may have the text."""
        start, end = offset - self._start, end - self._start
        if start < 0 or self._lower.find(needle, start, max(start, end - _PREV)) < 0:
            return None
        return self._data[start:end]

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
