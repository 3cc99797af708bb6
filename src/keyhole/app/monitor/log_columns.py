"""The audit log as columns in memory, so that a million events can be paged, filtered and summed.

Each event is a row: its time, its place on disk, and a number for each of its texts. The line
itself is read from disk again when it is shown. Rows are only added, so a row number stays valid
until `generation` changes. Used by one thread at a time.
"""

from __future__ import annotations

import os
from array import array
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from keyhole.audit.log_line import MAX_LINE, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.audit.log_directory import LogDirectory, LogFile
    from keyhole.audit.log_line import LogRecord

MAX_EVENTS = 1_500_000
"""Rows that are held, some 80 bytes each. Older events stay on disk, for `keyhole log`."""

PIECE = 1024 * 1024
"""Bytes of a file that are read at once."""

MAX_NAMES = 200_000
"""Different texts of a column. Attack: a sandbox asks for any number of hosts. Further texts count
as empty in the column; the lines still have them."""

MAX_NAME = 255
"""Characters of such a text, as many as a DNS name has."""

_OFFSET_BITS = 40
_MAX_COUNT = 2**32 - 1
_MAX_AMOUNT = 2**63 - 1
_ALLOWED = "allow"


class _Details(Struct):
    service: str | int | float = ""
    up: int | str | float = 0
    down: int | str | float = 0
    tokens: int | str | float = 0
    nano_usd: int | str | float = 0
    price: str | int | float = ""


class _Aggregate(Struct):
    count: int = 1


class _Line(Struct):
    """The members of a line that columns are made of."""

    ts: str
    session: str
    kind: str
    verdict: str
    reason: str
    rule: str
    host: str
    details: _Details = msgspec.field(default_factory=_Details)
    aggregate: _Aggregate | None = None


class Names:
    """Texts by number: a column holds a number in place of each text."""

    __slots__ = ("_numbers", "texts")

    def __init__(self) -> None:
        self.texts = [""]
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        """The text's number, a new one if it has none."""
        text = text[:MAX_NAME]
        found = self._numbers.get(text)
        if found is None and len(self.texts) >= MAX_NAMES:
            return self.number("")
        if found is None:
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def marked(self, test: Callable[[str], bool]) -> bytearray:
        """For each number, whether its text passes."""
        return bytearray(map(test, self.texts))


class LogColumns:
    """The newest events of a log directory; `refresh` adds those that were written since."""

    def __init__(self, directory: LogDirectory, most: int = MAX_EVENTS) -> None:
        self._directory = directory
        self._most = most
        self._decode = msgspec.json.Decoder(_Line).decode
        self.generation = 0
        """Changes when rows are numbered anew."""
        self.unreadable = 0
        """Lines that are no event."""
        self.partial = False
        """Whether older events were left out."""
        self._clear()

    def _clear(self) -> None:
        self.at = array("d")
        self.session = array("I")
        self.host = array("I")
        self.service = array("I")
        self.kind = array("I")
        self.denied = array("B")
        self.times = array("I")
        self.up = array("Q")
        self.down = array("Q")
        self.tokens = array("Q")
        self.money = array("Q")
        """Billionths of a dollar."""
        self.unpriced = array("B")
        """Whether the tokens have no known price."""
        self._place = array("Q")
        self._length = array("I")
        self.sessions, self.hosts, self.services, self.kinds = Names(), Names(), Names(), Names()
        self._files: list[str] = []
        self._read: dict[str, tuple[int, int]] = {}
        """File number and the offset up to which each file was read."""

    def __len__(self) -> int:
        return len(self.at)

    def refresh(self) -> int:
        """Add what was written since; returns the number of rows."""
        if len(self) > self._most + self._most // 4:
            self.generation += 1
            self._clear()
        first, listed = len(self), self._directory.listing()
        if not self._read:
            listed = self._newest(listed)
        for file in listed:
            number, offset = self._read.get(file.name, (len(self._files), 0))
            if number == len(self._files):
                self._files.append(file.name)
            if file.size > offset:
                offset = self._read_file(file.name, number, offset, file.size)
            self._read[file.name] = number, offset
        self._sort(first)
        return len(self)

    def record(self, row: int) -> LogRecord | None:
        """The event of a row, from its file; None if the file was removed or changed."""
        data = self.line(row)
        return None if data is None else parse_line(data)

    def line(self, row: int) -> bytes | None:
        """The line of a row, from its file."""
        number, offset = self.place(row)
        try:
            descriptor = self._directory.read(self._files[number])
        except OSError:
            return None
        try:
            return os.pread(descriptor, self._length[row], offset)
        finally:
            os.close(descriptor)

    def place(self, row: int) -> tuple[int, int]:
        """The number of a row's file, and the offset of its line."""
        place = self._place[row]
        return place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)

    def length(self, row: int) -> int:
        """Bytes of a row's line."""
        return self._length[row]

    def open_file(self, number: int) -> int | None:
        """A descriptor for a file; None if it was removed."""
        try:
            return self._directory.read(self._files[number])
        except OSError:
            return None

    def _newest(self, listed: list[LogFile]) -> list[LogFile]:
        """The newest files that have room; a line has 200 bytes or more."""
        room = self._most * 400
        kept: list[LogFile] = []
        for file in reversed(listed):
            if kept and room < file.size:
                self.partial = True
                break
            room -= file.size
            kept.append(file)
        # Older files are known, and not read.
        for file in listed[: len(listed) - len(kept)]:
            self._read[file.name] = len(self._files), file.size
            self._files.append(file.name)
        return kept[::-1]

    def _read_file(self, name: str, number: int, offset: int, size: int) -> int:
        """Add the whole lines from an offset on; returns where the next begins."""
        try:
            descriptor = self._directory.read(name)
        except OSError:
            return offset  # removed by a pruner meanwhile
        try:
            while offset < size:
                piece = os.pread(descriptor, PIECE, offset)
                end = piece.rfind(b"\n") + 1
                if not end and len(piece) <= MAX_LINE:
                    break  # its writer has not ended the line yet
                if not end:
                    offset += len(piece)  # no line of Keyhole's is that long
                    continue
                self._add(piece[:end], number, offset)
                offset += end
        finally:
            os.close(descriptor)
        return offset

    def _add(self, piece: bytes, number: int, offset: int) -> None:
        start = (number << _OFFSET_BITS) | offset
        for line in piece.split(b"\n")[:-1]:
            if not self._add_line(line, start):
                self.unreadable += 1
            start += len(line) + 1

    def _add_line(self, line: bytes, place: int) -> bool:
        try:
            found = self._decode(line)
            at = datetime.fromisoformat(found.ts).timestamp()
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return False
        details, aggregate = found.details, found.aggregate
        times = 1 if aggregate is None else min(max(aggregate.count, 1), _MAX_COUNT)
        self.at.append(at)
        self._place.append(place)
        self._length.append(len(line))
        self.session.append(self.sessions.number(found.session))
        self.host.append(self.hosts.number(found.host))
        self.service.append(self.services.number(_service(found)))
        self.kind.append(self.kinds.number(found.kind))
        self.denied.append(found.verdict != _ALLOWED)
        self.times.append(times)
        self.up.append(_amount(details.up))
        self.down.append(_amount(details.down))
        self.tokens.append(_amount(details.tokens))
        self.money.append(_amount(details.nano_usd))
        self.unpriced.append(details.price == "unknown")
        return True

    def _columns(self) -> tuple[array[Any], ...]:
        return (
            self.at, self._place, self._length, self.session, self.host, self.service, self.kind,
            self.denied, self.times, self.up, self.down, self.tokens, self.money, self.unpriced,
        )  # fmt: skip

    def _sort(self, first: int) -> None:
        """Put the rows from `first` on in the order of time; files of one time overlap."""
        at = self.at[first:]
        if all(one <= other for one, other in pairwise(at)):
            return
        order = sorted(range(len(at)), key=at.__getitem__)
        for column in self._columns():
            part = column[first:]
            column[first:] = array(part.typecode, (part[each] for each in order))


def _service(line: _Line) -> str:
    """The service of a request, by its details or else by the rule that decided."""
    named = line.details.service
    if isinstance(named, str) and named:
        return named
    words = line.rule.split(".", 2)
    return words[1].partition("[")[0] if words[0] == "services" and len(words) > 1 else ""


def _amount(value: str | int | float) -> int:
    return min(max(value, 0), _MAX_AMOUNT) if type(value) is int else 0
