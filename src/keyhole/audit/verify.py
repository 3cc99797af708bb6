"""Finds lines and files of the log that were removed, changed, moved or repeated (I8).

Called by `keyhole log verify`. Every file is read once, in pieces. A chain alone cannot show that
lines at its very end were removed; for that the caller passes a digest that must be present: the
head that a run printed when it ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.audit.chain import CLOSED, JOINED, OPENED, ROTATED
from keyhole.audit.log_line import LogRecord, line_digest, parse_line
from keyhole.audit.retention import REMOVED
from keyhole.audit.tail import FileTail, LogLine
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from keyhole.audit.log_directory import LogDirectory

MAX_FINDINGS = 100
"""Problems that are reported for one file; more would add nothing."""


class VerifyFinding(Struct, frozen=True):
    """A problem or note about a line; line 0 is the file as a whole."""

    file: str
    line: int
    text: str


class VerifyReport(Struct, frozen=True):
    """The result of verification. Notes are no problems: a writer was killed, or still writes."""

    files: int
    lines: int
    problems: tuple[VerifyFinding, ...]
    notes: tuple[VerifyFinding, ...]

    @property
    def whole(self) -> bool:
        """Whether there is no problem."""
        return not self.problems


def verify_log(directory: LogDirectory, head: str | None = None) -> VerifyReport:
    """Check every file, then the links between files, then that the head is present."""
    # 1. Each file for itself. A living writer may begin a file meanwhile: look again, at the one
    #    that it ended too.
    scrolls: dict[str, _Scroll] = {}
    while new := [f.name for f in directory.listing() if f.name not in scrolls]:
        for name in new + [name for name, scroll in scrolls.items() if scroll.is_written]:
            scrolls[name] = _Scroll(name, head).read(directory)
    # 2. The files of a chain, and recorded removals.
    removed = {file: last for scroll in scrolls.values() for file, last in scroll.removed.items()}
    for scroll in scrolls.values():
        _check_neighbours(scroll, scrolls, removed)
    _check_joined(scrolls, removed)
    found = [scrolls[name] for name in sorted(scrolls)]
    problems = [problem for scroll in found for problem in scroll.problems]
    # 3. The end.
    if head is not None and not any(scroll.has_head for scroll in found):
        gone = next((file for file, last in removed.items() if last == head), None)
        text = (
            f"no line has the digest {head}: lines were cut from the end of a file, or it is gone"
        )
        if gone is not None:
            text = f"the run that ended with {head} was in this file, removed to keep the log small"
        problems.append(VerifyFinding(gone or "*", 0, text))
    notes = [note for scroll in found for note in scroll.notes]
    return VerifyReport(len(found), sum(s.lines for s in found), tuple(problems), tuple(notes))


class _Scroll(Struct):
    """One file, and the facts that are collected while it is read."""

    name: str
    wanted_head: str | None
    lines: int = 0
    first: LogRecord | None = None
    last_digest: str = ""
    last_seq: int = -1
    ending: str = ""
    following: str = ""
    has_head: bool = False
    is_written: bool = False
    has_vanished: bool = False
    removed: dict[str, str] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    """Digests with which other chains ended, and the lines that record them."""
    problems: list[VerifyFinding] = field(default_factory=list)
    notes: list[VerifyFinding] = field(default_factory=list)
    _in_step: bool = True

    def read(self, directory: LogDirectory) -> _Scroll:
        """Read all lines of the file."""
        self.is_written = directory.is_written(self.name)
        tail = FileTail(directory, self.name)
        try:
            while lines := tail.more():
                for line in lines:
                    self._take(line)
        except FileNotFoundError:
            self.has_vanished = True
            self.notes.append(VerifyFinding(self.name, 0, "was removed while it was read"))
            return self
        except OSError as error:
            raise ResourceUnusable(f"{self.name}: {error.strerror}") from None
        if self.is_written:
            self.notes.append(VerifyFinding(self.name, 0, "is being written now"))
        elif tail.torn:
            text = "ends within a line: its writer was killed, and the last batch was lost"
            self.notes.append(VerifyFinding(self.name, self.lines + 1, text))
        elif not self.ending:
            text = "was not closed: its writer was killed, and a last batch may be lost"
            self.notes.append(VerifyFinding(self.name, self.lines, text))
        return self

    def problem(self, line: int, text: str) -> None:
        """Add a problem, up to the bound."""
        if len(self.problems) < MAX_FINDINGS:
            self.problems.append(VerifyFinding(self.name, line, text))

    def _take(self, line: LogLine) -> None:
        self.lines = line.number
        record = parse_line(line.data) if line.data is not None else None
        if line.data is None or record is None:
            self.problem(line.number, "is no event: it was changed or added")
            self._in_step = False  # the chain is followed again from the next line on
            return
        if line.number == 1:
            self._check_first(record)
        elif self._in_step:
            self._check_step(line.number, record)
        if self.ending:
            self.problem(line.number, "comes after the file's last line: it was added or repeated")
        self.last_digest, self.last_seq, self._in_step = line_digest(line.data), record.seq, True
        self.has_head |= self.last_digest == self.wanted_head
        if record.is_own:
            self._note_own(record)

    def _check_first(self, record: LogRecord) -> None:
        if not record.is_own or record.reason != OPENED:
            self.problem(1, "is not the beginning: lines before it were removed or moved")
            return
        self.first = record
        if record.text("file") != self.name:
            self.problem(1, "is of another file: this one was copied or renamed")
        if not record.text("after") and (record.prev, record.seq) != (record.text("chain"), 0):
            self.problem(1, "does not begin its chain: it was changed")

    def _check_step(self, number: int, record: LogRecord) -> None:
        follows, step = record.prev == self.last_digest, record.seq - self.last_seq
        if follows and step == 1:
            return
        if step > 1:
            text = f"comes {step - 1} too early: lines before it were removed or moved"
        elif step < 1:
            text = f"has number {record.seq} after {self.last_seq}: it was moved, repeated or added"
        else:
            self.problem(number - 1, "is not what the next line says of it: it was changed")
            return
        self.problem(number, text)

    def _note_own(self, record: LogRecord) -> None:
        if record.reason in {CLOSED, ROTATED}:
            self.ending, self.following = record.reason, record.text("next")
        elif record.reason == REMOVED:
            self.removed[record.text("file")] = record.text("head")
        elif record.reason == JOINED:
            self.joined[record.text("head")] = self.lines


def _check_joined(scrolls: dict[str, _Scroll], removed: dict[str, str]) -> None:
    """Check that each chain whose end another chain records ends with that digest."""
    if any(scroll.has_vanished for scroll in scrolls.values()):
        return
    ends = {scroll.last_digest for scroll in scrolls.values()} | set(removed.values())
    for scroll in scrolls.values():
        for head, number in scroll.joined.items():
            if head not in ends:
                text = f"no file ends with {head}, as it says: one was cut, or is gone"
                scroll.problem(number, text)


def _check_neighbours(
    scroll: _Scroll, scrolls: dict[str, _Scroll], removed: dict[str, str]
) -> None:
    """Check that a rotated file and the one after it name each other."""
    following = scrolls.get(scroll.following)
    if scroll.following and following is None and scroll.following not in removed:
        scroll.problem(scroll.lines, f"the file after it, {scroll.following}, is missing")
    if following and following.first and following.first.text("after") != scroll.name:
        following.problem(1, f"does not continue {scroll.name}, which says that it does")
    if scroll.first is None:
        return
    before = scroll.first.text("after")
    if not before or (before in scrolls and scrolls[before].has_vanished):
        return
    end = scrolls[before].last_digest if before in scrolls else removed.get(before)
    if end is None:
        scroll.problem(1, f"the file before it, {before}, is missing")
    elif end != scroll.first.prev:
        scroll.problem(
            1, f"does not follow the last line of {before}: lines there were cut or changed"
        )
