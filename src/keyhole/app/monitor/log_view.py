"""The rows of the log that match a filter, oldest first, extended as the log grows.

Time, session, host, service, kind and verdict are compared in the columns. Text is searched in the
lines themselves, newest first, for a bounded time; a view tells how far back it searched. A search
runs in slices, between which others can read the same columns.
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
"""Seconds for which one search may read lines; a million take about two."""

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


SLICE_SECONDS = 0.02
"""How long a search goes on before others have their turn: nobody sees a delay of this length."""

_ROWS_BETWEEN_LOOKS = 256
"""Rows that are searched between two looks at the clock."""


class LogView:
    """The rows of one filter."""

    def __init__(self, columns: LogColumns, wanted: EventFilter) -> None:
        self.wanted = wanted
        self.generation = columns.generation
        self.rows: list[int] | range = range(0)
        self.unsearched = 0
        """Older rows that were not searched for the text, because the time was over."""
        self._seen = 0
        self._search: _TextSearch | None = None

    @property
    def searching(self) -> bool:
        """Whether rows wait to be searched for the text."""
        return self._search is not None

    def extend(self, columns: LogColumns, until: float) -> None:
        """Add the rows that came since, or search on for a moment. At `until`, of the monotonic
        clock, a search is given up."""
        if self._search is None:
            self._begin(columns)
        search = self._search
        if search is None:
            return
        done = search.go_on(min(until, time.monotonic() + SLICE_SECONDS))
        if done or time.monotonic() >= until:
            search.close()
            self._search = None
            self.unsearched += search.left
            self.rows = [*self.rows, *search.found]

    def _begin(self, columns: LogColumns) -> None:
        first, end = self._seen, len(columns)
        if first == end:
            return
        self._seen = end
        if self.wanted == EventFilter():
            self.rows = range(end)
            return
        found = _matching(columns, self.wanted, first, end)
        if self.wanted.text:
            self._search = _TextSearch(columns, found, self.wanted.text)
        else:
            self.rows = [*self.rows, *found]

    def close(self) -> None:
        """Release the view: nobody needs it any more."""
        if self._search is not None:
            self._search.close()


class LogViews:
    """The views that were asked for last."""

    def __init__(self, columns: LogColumns) -> None:
        self._columns = columns
        self._kept: dict[EventFilter, LogView] = {}

    def of(self, wanted: EventFilter, until: float) -> LogView:
        """The view of a filter, up to the newest row; one that is `searching` is to be asked for
        again, until the time at which its search is given up."""
        view = self._kept.pop(wanted, None)
        if view is not None and view.generation != self._columns.generation:
            view.close()
            view = None
        if view is None:
            view = LogView(self._columns, wanted)
        view.extend(self._columns, until)
        self._kept[wanted] = view  # the last asked for is the last to be dropped
        while len(self._kept) > MAX_VIEWS:
            self._kept.pop(next(iter(self._kept))).close()
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


class _TextSearch:
    """Looks for a text in the lines of some rows, from the newest on."""

    def __init__(self, columns: LogColumns, rows: Sequence[int], text: str) -> None:
        self._text = text.lower()
        self._needle = json.dumps(self._text)[1:-1].lower().encode("ascii")
        self._windows = _Windows(columns)
        self._rows = rows
        self._found: list[int] = []
        self.left = len(rows)
        """Rows that were not searched yet, all older than the others."""

    @property
    def found(self) -> list[int]:
        """The rows that have it, the oldest first."""
        return self._found[::-1]

    def go_on(self, until: float) -> bool:
        """Search until this time of the monotonic clock; returns whether all was searched."""
        rows = self._rows
        while self.left:
            if not self.left % _ROWS_BETWEEN_LOOKS and time.monotonic() >= until:
                return False
            self.left -= 1
            row = rows[self.left]
            if not self._windows.covers(row) and time.monotonic() >= until:
                self.left += 1
                return False
            line = self._windows.line(row, self._needle)
            if line is not None and _says(parse_line(line), self._text):
                self._found.append(row)
        return True

    def close(self) -> None:
        """Close the files."""
        self._windows.close()


def _says(record: LogRecord | None, text: str) -> bool:
    """Whether a text of the event has it: not the name of a member, which every line has."""
    if record is None:
        return False
    texts = (record.session, record.kind, record.reason, record.rule, record.host)
    return any(text in str(each).lower() for each in (*texts, *record.details.values()))


class _Windows:
    """The parts of files that a search reads: one of each file, since the rows of sessions that ran
    at the same time alternate."""

    def __init__(self, columns: LogColumns) -> None:
        self._columns = columns
        self._kept: dict[int, _Window] = {}

    def covers(self, row: int) -> bool:
        """Whether the line of a row was read."""
        number, offset = self._columns.place(row)
        window = self._kept.get(number)
        return window is not None and window.covers(offset, offset + self._columns.length(row))

    def line(self, row: int, needle: bytes) -> bytes | None:
        """The line of a row, if it may have the text."""
        number, offset = self._columns.place(row)
        window = self._kept.pop(number, None)
        if window is None:
            while len(self._kept) >= MAX_WINDOWS:
                self._kept.pop(next(iter(self._kept))).close()
            window = _Window(self._columns.open_file(number))
        self._kept[number] = window  # the last read is the last to be dropped
        end = offset + self._columns.length(row)
        if not window.covers(offset, end):
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
