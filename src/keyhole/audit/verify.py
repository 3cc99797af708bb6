"""Is the log whole? Finds lines and files that were removed, changed, moved or repeated (I8).

Called by `keyhole log verify`. Every file is read once, in pieces. What no chain can show, that
lines at its very end are gone, shows when the caller knows a digest that must be there: the head
that a run printed when it ended.
"""

from __future__ import annotations

from keyhole.audit.chain import CLOSED, JOINED, OPENED, ROTATED
from keyhole.audit.directory import AuditUnusable, Directory
from keyhole.audit.line import Record, digest, parse
from keyhole.audit.retention import REMOVED
from keyhole.audit.tail import Line, Tail
from keyhole.model.value import dataclass, field

MAX_FINDINGS = 100
"""Problems of one file that are told; a file with more is broken enough."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a file; line 0 is the file as a whole."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found. Notes are no faults: a writer that was killed, one still alive."""

    files: int
    lines: int
    problems: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify(directory: Directory, head: str | None = None) -> Report:
    """Check every file, then what files say of one another, then that the head is there."""
    # 1. Each file for itself. A living writer may begin a file meanwhile: look again, at the one
    #    that it ended too.
    scrolls: dict[str, _Scroll] = {}
    while new := [f.name for f in directory.listing() if f.name not in scrolls]:
        for name in new + [name for name, scroll in scrolls.items() if scroll.is_written]:
            scrolls[name] = _Scroll(name, head).read(directory)
    # 2. The files of a chain, and what was removed on purpose.
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
        problems.append(Finding(gone or "*", 0, text))
    notes = [note for scroll in found for note in scroll.notes]
    return Report(len(found), sum(s.lines for s in found), tuple(problems), tuple(notes))


@dataclass(slots=True)
class _Scroll:
    """One file while and after it is read."""

    name: str
    wanted_head: str | None
    lines: int = 0
    first: Record | None = None
    last_digest: str = ""
    last_seq: int = -1
    ending: str = ""
    following: str = ""
    has_head: bool = False
    is_written: bool = False
    has_vanished: bool = False
    removed: dict[str, str] = field(default_factory=dict)
    joined: dict[str, int] = field(default_factory=dict)
    """Digests that other chains ended with, and the lines that say so."""
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    _in_step: bool = True

    def read(self, directory: Directory) -> _Scroll:
        """Walk over the file's lines."""
        self.is_written = directory.is_written(self.name)
        tail = Tail(directory, self.name)
        try:
            while lines := tail.more():
                for line in lines:
                    self._take(line)
        except FileNotFoundError:
            self.has_vanished = True
            self.notes.append(Finding(self.name, 0, "was removed while it was read"))
            return self
        except OSError as error:
            raise AuditUnusable(f"{self.name}: {error.strerror}") from None
        if self.is_written:
            self.notes.append(Finding(self.name, 0, "is being written now"))
        elif tail.torn:
            text = "ends within a line: its writer was killed, and the last batch was lost"
            self.notes.append(Finding(self.name, self.lines + 1, text))
        elif not self.ending:
            text = "was not closed: its writer was killed, and a last batch may be lost"
            self.notes.append(Finding(self.name, self.lines, text))
        return self

    def problem(self, line: int, text: str) -> None:
        """Tell of something wrong, unless enough was told."""
        if len(self.problems) < MAX_FINDINGS:
            self.problems.append(Finding(self.name, line, text))

    def _take(self, line: Line) -> None:
        self.lines = line.number
        record = parse(line.data) if line.data is not None else None
        if line.data is None or record is None:
            self.problem(line.number, "is no event: it was changed or added")
            self._in_step = False  # what comes after is compared with itself again
            return
        if line.number == 1:
            self._check_first(record)
        elif self._in_step:
            self._check_step(line.number, record)
        if self.ending:
            self.problem(line.number, "comes after the file's last line: it was added or repeated")
        self.last_digest, self.last_seq, self._in_step = digest(line.data), record.seq, True
        self.has_head |= self.last_digest == self.wanted_head
        if record.is_own:
            self._note_own(record)

    def _check_first(self, record: Record) -> None:
        if not record.is_own or record.reason != OPENED:
            self.problem(1, "is not the beginning: lines before it were removed or moved")
            return
        self.first = record
        if record.text("file") != self.name:
            self.problem(1, "is of another file: this one was copied or renamed")
        if not record.text("after") and (record.prev, record.seq) != (record.text("chain"), 0):
            self.problem(1, "does not begin its chain: it was changed")

    def _check_step(self, number: int, record: Record) -> None:
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

    def _note_own(self, record: Record) -> None:
        if record.reason in {CLOSED, ROTATED}:
            self.ending, self.following = record.reason, record.text("next")
        elif record.reason == REMOVED:
            self.removed[record.text("file")] = record.text("head")
        elif record.reason == JOINED:
            self.joined[record.text("head")] = self.lines


def _check_joined(scrolls: dict[str, _Scroll], removed: dict[str, str]) -> None:
    """A chain that another one says has ended ends so."""
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
    """A rotated file and the one after it know each other."""
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
