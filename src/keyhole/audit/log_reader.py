"""Reads the events of all files in order of time; filters and follows them.

Called by `keyhole log` and `keyhole watch`. Files may be torn, tampered with or removed meanwhile:
a line that is no event is returned as such and raises nothing.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_line import LogRecord, line_digest, parse_line
from keyhole.audit.tail import FileTail, LogLine
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from keyhole.audit.log_directory import LogDirectory

_Place = tuple[float, int]
"""Sort key: the time, then the number in its chain."""
_BEGINNING: _Place = (0.0, 0)


class LogEntry(Struct, frozen=True):
    """A line of the log; `record` is None if it is no event."""

    file: str
    line: int
    data: bytes
    record: LogRecord | None

    @property
    def id(self) -> str:
        """The line's digest, which the next line has as `prev`."""
        return line_digest(self.data)


class LogFilter(Struct, frozen=True):
    """A filter of events."""

    session: str | None = None
    denied: bool = False
    since: float | None = None
    """Only events of this time or later."""
    host: str | None = None
    """Only events of this host, or with `*.` before a name, of its subdomains."""

    def takes(self, entry: LogEntry) -> bool:
        """Whether the entry passes; a line that is no event always does."""
        record = entry.record
        if record is None:
            return True
        if self.denied and not record.denied:
            return False
        if self.since is not None and record.at < self.since:
            return False
        if self.host is not None and not _is_host(record.host, self.host):
            return False
        return self.session is None or record.session.startswith(self.session)


def _is_host(host: str, wanted: str) -> bool:
    host, wanted = host.lower(), wanted.lower()
    return host.endswith(wanted[1:]) if wanted.startswith("*.") else host == wanted


class LogReader:
    """The files of a directory, each with the position up to which it was read."""

    def __init__(
        self,
        directory: LogDirectory,
        since: float = 0.0,
        offsets: Mapping[str, int] | None = None,
    ) -> None:
        """Files that were last written before `since` are not read; a file of `offsets` is read
        from there on."""
        self._directory = directory
        self._since = since * 1e9
        self._tails = {
            name: FileTail(directory, name, offset) for name, offset in (offsets or {}).items()
        }

    def torn(self) -> list[str]:
        """Files without a writer that end within a line: their last batch was lost."""
        found = (name for name, tail in self._tails.items() if tail.torn)
        return sorted(name for name in found if not self._directory.is_written(name))

    def read(self) -> Iterator[LogEntry]:
        """All present entries by time; entries of one file keep their order."""
        waiting = sorted(self._open_all(), reverse=True)
        active: list[tuple[_Place, str, int, LogEntry, Iterator[LogEntry]]] = []

        def advance(entries: Iterator[LogEntry], place: _Place) -> None:
            entry = next(entries, None)
            if entry is not None:
                # One entry of each file at a time: a clock that stepped back reorders no file.
                place = _place(entry, place)
                heapq.heappush(active, (place, entry.file, entry.line, entry, entries))

        while waiting or active:
            # Files are begun only when their time comes: few runs overlap, many follow.
            while waiting and (not active or waiting[-1][0] <= active[0][0]):
                place, name = waiting.pop()
                advance(_entries(self._tails[name]), place)
            if active:
                place, _, _, entry, entries = heapq.heappop(active)
                yield entry
                advance(entries, place)

    def skip(self) -> None:
        """Pass over everything that is there, unread."""
        for file in self._directory.listing():
            self._tails[file.name] = FileTail(self._directory, file.name, file.size)

    def fresh(self) -> list[LogEntry]:
        """Entries that were added since, in old files and new ones: a piece of each file."""
        fresh: list[LogEntry] = []
        for file in self._directory.listing():
            tail = self._tails.setdefault(file.name, FileTail(self._directory, file.name))
            if file.size > tail.offset:
                fresh += _piece(tail)  # one at a time: a file may be large
        fresh.sort(key=lambda entry: _place(entry, _BEGINNING))
        return fresh

    def follow(self, wait: Callable[[], None]) -> Iterator[LogEntry]:
        """Entries added from now on; calls `wait` in between."""
        while True:
            fresh = self.fresh()
            yield from fresh
            if not fresh:
                wait()

    def offsets(self) -> dict[str, int]:
        """How far each file that is still there was read."""
        present = {file.name for file in self._directory.listing()}
        return {name: tail.whole for name, tail in self._tails.items() if name in present}

    def _open_all(self) -> list[tuple[_Place, str]]:
        """Every file with the sort key of its first line."""
        found = []
        for file in self._directory.listing():
            if file.mtime < self._since:
                continue
            self._tails[file.name] = FileTail(self._directory, file.name)
            first = next(_entries(FileTail(self._directory, file.name)), None)
            found.append((_place(first, _BEGINNING) if first else _BEGINNING, file.name))
        return found


def _place(entry: LogEntry, before: _Place) -> _Place:
    """The sort key of an entry; a line that is no event has that of the entry before it."""
    return (entry.record.at, entry.record.seq) if entry.record else before


def _entries(tail: FileTail) -> Iterator[LogEntry]:
    while entries := _piece(tail):
        yield from entries


def _piece(tail: FileTail) -> list[LogEntry]:
    try:
        return [_entry(tail.name, line) for line in tail.more()]
    except FileNotFoundError:
        return []  # removed by a pruner meanwhile
    except OSError as error:
        raise ResourceUnusable(f"{tail.name}: {error.strerror}") from None


def _entry(name: str, line: LogLine) -> LogEntry:
    data = line.data or b""
    return LogEntry(name, line.number, data, parse_line(data))
