"""Events of all files as one story: merged by time, filtered, followed.

Called by `keyhole log`. Files may be torn, tampered with or removed meanwhile: what is not an
event is handed on as such, never an exception.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from keyhole.audit.directory import AuditUnusable, Directory
from keyhole.audit.line import Record, digest, parse
from keyhole.audit.tail import Line, Tail
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Place = tuple[float, int]
"""A time, and within one moment of a chain the number."""
_BEGINNING: _Place = (0.0, 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the log; `record` is None where it is no event."""

    file: str
    line: int
    data: bytes
    record: Record | None

    @property
    def id(self) -> str:
        """The line's digest: what the next line's `prev` says."""
        return digest(self.data)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are asked for."""

    session: str | None = None
    denied: bool = False

    def takes(self, entry: Entry) -> bool:
        """Whether the entry is asked for; what is no event always is."""
        record = entry.record
        if record is None:
            return True
        if self.denied and not record.denied:
            return False
        return self.session is None or record.session.startswith(self.session)


class Story:
    """The files of a directory, each read up to somewhere."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._tails: dict[str, Tail] = {}

    def torn(self) -> list[str]:
        """Files that end within a line though no one writes them: their last batch was lost."""
        found = (name for name, tail in self._tails.items() if tail.torn)
        return sorted(name for name in found if not self._directory.is_written(name))

    def read(self) -> Iterator[Entry]:
        """All that is there now, by time; within a file always in its own order."""
        waiting = sorted(self._open_all(), reverse=True)
        active: list[tuple[_Place, str, int, Entry, Iterator[Entry]]] = []

        def advance(entries: Iterator[Entry], place: _Place) -> None:
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

    def follow(self, wait: Callable[[], None]) -> Iterator[Entry]:
        """What is added from now on, in old files and new ones; `wait` is called in between."""
        while True:
            fresh: list[Entry] = []
            for file in self._directory.listing():
                tail = self._tails.setdefault(file.name, Tail(self._directory, file.name))
                if file.size > tail.offset:
                    fresh += _piece(tail)  # one at a time: a file may be large
            fresh.sort(key=lambda entry: _place(entry, _BEGINNING))
            yield from fresh
            if not fresh:
                wait()

    def _open_all(self) -> list[tuple[_Place, str]]:
        """Every file with the place of its first line."""
        found = []
        for file in self._directory.listing():
            self._tails[file.name] = Tail(self._directory, file.name)
            first = next(_entries(Tail(self._directory, file.name)), None)
            found.append((_place(first, _BEGINNING) if first else _BEGINNING, file.name))
        return found


def _place(entry: Entry, before: _Place) -> _Place:
    """Where an entry stands; what is no event stands where the one before it did."""
    return (entry.record.at, entry.record.seq) if entry.record else before


def _entries(tail: Tail) -> Iterator[Entry]:
    while entries := _piece(tail):
        yield from entries


def _piece(tail: Tail) -> list[Entry]:
    try:
        return [_entry(tail.name, line) for line in tail.more()]
    except FileNotFoundError:
        return []  # removed by a pruner meanwhile
    except OSError as error:
        raise AuditUnusable(f"{tail.name}: {error.strerror}") from None


def _entry(name: str, line: Line) -> Entry:
    data = line.data or b""
    return Entry(name, line.number, data, parse(data))
