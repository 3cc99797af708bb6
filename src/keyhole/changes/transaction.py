"""One apply as a transaction: its steps are written down, done, and can be undone.

The directory of a transaction has the steps, a line for each that was done, and the entries that
were replaced. A process that is killed at any point leaves enough for the next one to finish:
a step is done only if the entry still has the stamp from before it, each file is written beside its
place and exchanged with the entry there, and a step that was done but not noted is recognised by
its result.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.changes.base_record import index_entries
from keyhole.changes.entry import Action, ApplyStep, EntryKind
from keyhole.changes.exact_replacement import (
    bring_back,
    drop,
    put_in_place,
    settle_exchange,
    stamp_at,
    take_away,
)
from keyhole.changes.git_index import is_index
from keyhole.changes.tree_directory import (
    TreeDirectory,
    copy_content,
    kind_of,
    same_content,
    stamp_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from keyhole.changes.trash import Trash
    from keyhole.changes.upper_layer import UpperLayer

SKIPPED = "-"
"""The result of a step that was not done, because the person's entry had changed."""
_GONE = "gone"
_MADE = "made"
_ENTRIES = "="
"""Before the entries of git's index that was applied: git writes it again, with the same ones."""
_BEGUN = "~"
"""Before the stamp of a new entry, in a line that is written before it gets its place."""

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ReviewedPair(Struct, frozen=True):
    """Both sides of one tree, open."""

    lower: TreeDirectory
    upper: UpperLayer


class Transaction:
    """The steps in one directory of Keyhole's own."""

    def __init__(self, directory: str, trees: Mapping[str, ReviewedPair], trash: Trash) -> None:
        self._directory = directory
        self._trash = trash
        self._own = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._trees = trees
        with open(f"{directory}/steps", encoding="ascii") as file:
            self._id, rows = json.load(file)
        self.steps = [ApplyStep(Action(row[0]), *row[1:]) for row in rows]
        self._resumed = True
        """Whether another process may have begun, and been killed."""
        self._log = -1
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    @classmethod
    def begin(
        cls,
        directory: str,
        steps: Sequence[ApplyStep],
        trees: Mapping[str, ReviewedPair],
        trash: Trash,
    ) -> Transaction:
        """Write the steps down, before the first is done."""
        draft = f"{directory}.draft"
        shutil.rmtree(draft, ignore_errors=True)
        os.mkdir(draft, 0o700)
        rows = [[s.action, s.tree, s.name, s.before, s.mode, s.target] for s in steps]
        with open(f"{draft}/steps", "w", encoding="ascii") as file:
            json.dump([os.urandom(6).hex(), rows], file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, directory)
        begun = cls(directory, trees, trash)
        begun._resumed = False
        return begun

    def close(self) -> None:
        """Close its directory."""
        os.close(self._own)

    def done(self) -> dict[int, str]:
        """The results of steps that were done or skipped, by number."""
        lines = self._lines("log")
        return {int(n): result for n, result in lines if result[:1] not in (_BEGUN, _ENTRIES)}

    def _marked(self, name: str, mark: str) -> dict[int, str]:
        """The texts of a file's lines that begin with a mark, by number."""
        return {int(n): result[1:] for n, result in self._lines(name) if result[:1] == mark}

    # ── forward ───────────────────────────────────────────────────────────────────────────────────

    def go_forward(self, stopped: Callable[[], bool] | None = None) -> list[ApplyStep]:
        """Do every step that is not done yet. Returns those that were skipped. Raises OSError, also
        where `stopped` says, between two steps, that the person wants it to end."""
        results, begun = self.done(), self._marked("log", _BEGUN)
        with self._appending("log"):
            for number, step in enumerate(self.steps):
                if stopped is not None and stopped():
                    raise InterruptedError("you interrupted it")
                if number not in results:
                    try:
                        if self._resumed:
                            self._settle(number, step, step.before, begun.get(number))
                        results[number] = self._do(number, step)
                    except OSError as error:
                        # The person knows this name, and not that of the file beside it.
                        error.filename = step.path
                        raise
                    self._note(number, results[number])
        return [step for n, step in enumerate(self.steps) if results[n] == SKIPPED]

    def _do(self, number: int, step: ApplyStep) -> str:
        pair = self._trees.get(step.tree)
        if pair is None:
            return SKIPPED  # the person removed the whole tree
        lower = pair.lower
        found = lower.look(step.name)
        if stamp_of(found) != step.before:
            return self._earlier_result(step, found)
        try:
            where, own = lower.place(step.name)
        except (FileNotFoundError, NotADirectoryError):
            return SKIPPED  # its directory was not made
        match step.action:
            case Action.MKDIR:
                os.mkdir(own, (step.mode | 0o700) & ~self._umask, dir_fd=where)
                _give(where, own, os.fstat(where))
                return _MADE
            case Action.RMDIR:
                try:
                    os.rmdir(own, dir_fd=where)
                except OSError:
                    return SKIPPED  # the person put something there
                finally:
                    lower.changed()
                return _GONE
            case Action.UNLINK:
                self._back_up(number, where, own, found)
                beside = self._beside(number)
                if not take_away(where, own, beside, step.before):
                    return SKIPPED
                drop(where, beside)
                return _GONE
            case _:
                self._back_up(number, where, own, found)
                return self._write(number, step, where, own, found)

    def _settle(self, number: int, step: ApplyStep, before: str, begun: str | None) -> None:
        """Finish what a killed process was at beside an entry, so that an entry which the person
        saved at that moment has its name again. `before` is the stamp that it was to replace."""
        pair = self._trees.get(step.tree)
        if pair is None:
            return
        try:
            where, own = pair.lower.place(step.name)
        except OSError:
            return  # its directory is gone
        beside = self._beside(number)
        if begun is not None:
            settle_exchange(where, beside, own, before, begun)
        elif before and stamp_at(where, own) == "" != stamp_at(where, beside) != before:
            bring_back(where, beside, own)
        else:
            drop(where, beside)

    def _earlier_result(self, step: ApplyStep, found: os.stat_result | None) -> str:
        """The result of a step that an interrupted apply did and did not note; otherwise the person
        changed the entry."""
        upper = self._trees[step.tree].upper
        match step.action:
            case Action.MKDIR:
                return _MADE if kind_of(found) is EntryKind.DIRECTORY else SKIPPED
            case Action.UNLINK | Action.RMDIR:
                return _GONE if found is None else SKIPPED
            case Action.LINK:
                lower = self._trees[step.tree].lower
                same = kind_of(found) is EntryKind.LINK and lower.target(step.name) == step.target
            case _:
                same = kind_of(found) is EntryKind.FILE and self._has_content(step, upper)
        return stamp_of(found) if same else SKIPPED

    def _has_content(self, step: ApplyStep, upper: UpperLayer) -> bool:
        with contextlib.ExitStack() as opened:
            files = []
            for side in (self._trees[step.tree].lower, upper):
                files.append(side.open(step.name))
                opened.callback(os.close, files[-1])
            return same_content(*files)

    def _write(
        self, number: int, step: ApplyStep, where: int, own: str, found: os.stat_result | None
    ) -> str:
        """Write an entry beside its place, and give it that place. Returns the result."""
        beside = self._beside(number)
        try:
            if step.action is Action.LINK:
                os.symlink(step.target, beside, dir_fd=where)
                _give(where, beside, os.fstat(where))
            else:
                self._write_file(step, where, beside, found)
            stamp = stamp_at(where, beside)
            if is_index(step.name):
                applied = index_entries(self._trees[step.tree].upper, step.name)
                self._note(number, f"{_ENTRIES}{applied}")
            if step.before:
                self._note(number, f"{_BEGUN}{stamp}")
            return stamp if put_in_place(where, beside, own, step.before) else SKIPPED
        except OSError:
            with contextlib.suppress(OSError):
                drop(where, beside)
            raise

    def _write_file(
        self, step: ApplyStep, where: int, beside: str, found: os.stat_result | None
    ) -> None:
        source = self._trees[step.tree].upper.open(step.name)
        try:
            file = os.open(beside, _NEW_FILE, 0o600, dir_fd=where)
            try:
                copy_content(source, file)
                before = found if kind_of(found) is EntryKind.FILE else None
                _give(where, beside, before or os.fstat(where))
                os.fchmod(file, applied_mode(step.mode, before, self._umask))
                times = os.fstat(source)
                os.utime(file, ns=(times.st_mtime_ns, times.st_mtime_ns))
            finally:
                os.close(file)
        finally:
            os.close(source)

    # ── back ──────────────────────────────────────────────────────────────────────────────────────

    def go_back(self, *, pending: bool) -> list[ApplyStep]:
        """Undo every step that was done, the last first. Returns those whose entry the person has
        changed since, which are left. With `pending`, what is undone is put back into the view."""
        begun, applied = self._marked("undone", _BEGUN), self._marked("log", _ENTRIES)
        undone = {int(n) for n, result in self._lines("undone") if not result.startswith(_BEGUN)}
        left = []
        with self._appending("undone"):
            for number, result in sorted(self.done().items(), reverse=True):
                step = self.steps[number]
                if number in undone or result == SKIPPED:
                    continue
                wanted = {_GONE: "", _MADE: "d"}.get(result, result)
                self._settle(number, step, wanted, begun.get(number))
                wanted = self._rewritten_index(step, applied.get(number)) or wanted
                restored = (step.before, begun.get(number, step.before))
                if not self._undo(number, step, wanted, restored, pending=pending):
                    left.append(step)
                self._note(number, ".")
        return left

    def _rewritten_index(self, step: ApplyStep, applied: str | None) -> str:
        """The stamp of an index that git wrote again since it was applied, with the same entries;
        empty if it is not one."""
        pair = self._trees.get(step.tree) if applied else None
        if pair is None or index_entries(pair.lower, step.name) != applied:
            return ""
        return stamp_of(pair.lower.look(step.name))

    def _undo(
        self, number: int, step: ApplyStep, wanted: str, restored: tuple[str, str], *, pending: bool
    ) -> bool:
        """Undo one step whose result has the stamp `wanted`. One that has a stamp of `restored` was
        undone before."""
        pair = self._trees.get(step.tree)
        if pair is None:
            return False
        lower = pair.lower
        now = stamp_of(lower.look(step.name))
        try:
            where, own = lower.place(step.name)
        except OSError:
            return False
        if now != wanted:
            return now in restored
        if pending:
            self._put(step, pair)
        match step.action:
            case Action.MKDIR:
                with contextlib.suppress(OSError):  # the person put something there
                    os.rmdir(own, dir_fd=where)
                lower.changed()
            case Action.RMDIR:
                os.mkdir(own, 0o777 & ~self._umask, dir_fd=where)
                _give(where, own, os.fstat(where))
            case _ if self._keeps(number):
                return self._restore(number, where, own, wanted)
            case _:
                beside = self._beside(number)
                if not take_away(where, own, beside, wanted):
                    return False
                self._drop(where, beside)
        return True

    def _drop(self, where: int, own: str) -> None:
        try:
            self._trash.take(where, own)
        except OSError:
            os.unlink(own, dir_fd=where)  # it is on another file system

    def _put(self, step: ApplyStep, pair: ReviewedPair) -> None:
        """Make the view show again what this step applied, unless it says something newer."""
        name, upper = step.name, pair.upper
        if upper.look(name) is not None or upper.says(name):
            return
        match step.action:
            case Action.MKDIR:
                upper.put_directory(name)
            case Action.UNLINK | Action.RMDIR:
                upper.put_whiteout(name)
            case Action.LINK:
                upper.put_link(name, step.target)
            case _:
                source = pair.lower.open(name)
                try:
                    upper.put_file(name, source, step.mode)
                finally:
                    os.close(source)

    # ── entries that were replaced ────────────────────────────────────────────────────────────────

    def _back_up(self, number: int, where: int, own: str, found: os.stat_result | None) -> None:
        """Keep the person's entry: a second name of it where the file system can, or a copy."""
        kept = str(number)
        if found is None or self._keeps(number):
            return
        try:
            os.link(own, kept, src_dir_fd=where, dst_dir_fd=self._own, follow_symlinks=False)
        except OSError:
            _copy_entry(where, own, self._own, f"{kept}.new", kept)

    def _restore(self, number: int, where: int, own: str, wanted: str) -> bool:
        """Put the person's entry back, in place of the one with this stamp. It is kept as well: a
        process that is killed now must find it again."""
        kept, beside = str(number), self._beside(number)
        try:
            os.link(kept, beside, src_dir_fd=self._own, dst_dir_fd=where, follow_symlinks=False)
        except OSError:
            _copy_entry(self._own, kept, where, f"{beside}.new", beside)
        if wanted:
            self._note(number, f"{_BEGUN}{stamp_at(where, beside)}")
        return put_in_place(where, beside, own, wanted, self._drop)

    def _keeps(self, number: int) -> bool:
        return os.path.lexists(f"{self._directory}/{number}")

    # ── lines ─────────────────────────────────────────────────────────────────────────────────────

    def _lines(self, name: str) -> Iterable[tuple[str, str]]:
        try:
            with open(f"{self._directory}/{name}", encoding="ascii") as file:
                lines = file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [(number, result) for number, _, result in (line.partition(" ") for line in lines)]

    @contextlib.contextmanager
    def _appending(self, name: str) -> Iterator[None]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._log = os.open(f"{self._directory}/{name}", flags, 0o600)
        try:
            yield
        finally:
            os.close(self._log)

    def _note(self, number: int, result: str) -> None:
        os.write(self._log, f"{number} {result}\n".encode("ascii"))

    def _beside(self, number: int) -> str:
        """The name of an entry that is about to get its place, or has just lost it."""
        return f".keyhole-{self._id}-{number}"


def applied_mode(mode: int, before: os.stat_result | None, umask: int) -> int:
    """The mode of an applied file: of the person's own file, only the executable bits change; a new
    one has no more than the person's umask allows. Never setuid."""
    if before is None:
        return mode & 0o777 & ~umask
    kept = stat.S_IMODE(before.st_mode) & 0o666
    return kept | (kept & 0o444) >> 2 if mode & 0o100 else kept


def _give(where: int, name: str, like: os.stat_result) -> None:
    """If root applies, the entry belongs to the owner of the tree."""
    if os.geteuid() == 0:
        os.chown(name, like.st_uid, like.st_gid, dir_fd=where, follow_symlinks=False)


def _copy_entry(source: int, name: str, target: int, beside: str, to: str) -> None:
    """Copy a file or a link to another file system; it appears at its place in one step."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=target)
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), beside, dir_fd=target)
        _give(target, beside, found)
    else:
        reading = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        original = os.open(name, reading, dir_fd=source)
        try:
            copy = os.open(beside, _NEW_FILE, 0o600, dir_fd=target)
            try:
                copy_content(original, copy)
                _give(target, beside, found)
                os.fchmod(copy, stat.S_IMODE(found.st_mode))
                os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(copy)
        finally:
            os.close(original)
    os.rename(beside, to, src_dir_fd=target, dst_dir_fd=target)
