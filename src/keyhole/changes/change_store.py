"""The views of one project under one policy: their directories, their lock, and what is done with
them.

A directory below Keyhole's state, which no sandbox sees: for each writable tree an upper directory,
the work directory of the overlay, and the record of the tree; the apply that is under way, and the
last ones, for `undo`. A run, an apply, a discard and an undo hold the lock, one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.changes.base_record import (
    keys_of,
    note_entry,
    read_record,
    record_tree,
    write_record,
)
from keyhole.changes.copied_tree import CopiedTree
from keyhole.changes.entry import Action
from keyhole.changes.executed_files import mark_executed
from keyhole.changes.layer_reading import LayerReading
from keyhole.changes.transaction import SKIPPED, ReviewedPair, Transaction
from keyhole.changes.trash import Trash
from keyhole.changes.tree_directory import TreeDirectory
from keyhole.changes.upper_layer import UpperLayer
from keyhole.model.errors import Refused, ResourceUnusable
from keyhole.model.text import visible
from keyhole.sandbox.first_process import ENDING_SECONDS, has_sandbox_ended, prepare_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from keyhole.changes.entry import ApplyPlan, ApplyStep, FileChange

MAX_VIEW = 1 << 20
"""Bytes of the file that describes the views."""


TRASH_SECONDS = 0.5
"""How long a verb empties the trash; a run does the rest while its command runs."""
LOCK_SECONDS = 0.5
"""How long the lock is waited for."""


MAX_UNDO = 10
"""Applies that can be undone, the last first. Each keeps the files that it replaced."""


class ReviewedTree(Struct, frozen=True):
    """A tree of the person's, and the directory of its view."""

    path: str
    directory: str

    @property
    def upper(self) -> str:
        """The changes."""
        return f"{self.directory}/upper"

    @property
    def base(self) -> str:
        """The record of the tree."""
        return f"{self.directory}/base"

    @property
    def copy(self) -> str:
        """The copy that a sandbox works on where there is no overlay."""
        return f"{self.directory}/copy"


class ApplyOutcome(Struct, frozen=True):
    """The result of an apply or an undo."""

    done: int
    left: tuple[str, ...] = ()
    """Paths that the person has changed meanwhile, and which were left."""


class ChangeStore:
    """The views of one project under one policy."""

    def __init__(self, directory: Path, project: str, policy: str) -> None:
        key = hashlib.sha256(os.fsencode(f"{project}\0{policy}")).hexdigest()[:32]
        self._directory = directory / key
        self.project, self._policy = project, policy
        self.recovered: list[tuple[str, int]] = []
        """Acts of killed processes that `hold` finished or took back, and their steps."""

    @property
    def session(self) -> str:
        """The session that last worked on the views; empty if there is none."""
        return str(self._view().get("session", ""))

    @property
    def directory(self) -> Path:
        """The store's own directory."""
        return self._directory

    @property
    def exists(self) -> bool:
        """Whether there ever was a view."""
        return os.path.lexists(self._directory / "view.json")

    @property
    def can_undo(self) -> bool:
        """Whether an apply is there to be undone."""
        return os.path.lexists(self._directory / "applied")

    @property
    def unrecorded(self) -> str:
        """The act, `apply`, `undo` or `discard`, that was begun and whose audit event may not have
        been written; empty if there is none."""
        try:
            return (self._directory / "unrecorded").read_text(encoding="ascii")
        except OSError:
            return ""

    def note_recorded(self) -> None:
        """The event of the last act was written. An act that has to be finished has one to come."""
        begun = (self._directory / "applied" / "undoing", f"{self._under_way}/steps")
        if not any(os.path.lexists(path) for path in begun):
            (self._directory / "unrecorded").unlink(missing_ok=True)

    def _begin_act(self, act: str) -> None:
        (self._directory / "unrecorded").write_text(act, encoding="ascii")

    # ── the lock ──────────────────────────────────────────────────────────────────────────────────

    def hold(self, who: str, *, collects: bool = True) -> int:
        """Take the lock, and finish what a killed process left; without `collects`, the copies of a
        killed run are not read. Returns the lock's descriptor. Raises Refused while another process
        holds it."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_soon(lock)
        except BlockingIOError:
            holder = _holder_in(lock)
            os.close(lock)
            raise Refused(
                f"the changes of this project are in use by {holder}", "wait until it has ended"
            ) from None
        try:
            self.refuse_living_sandbox(_holder_in(lock))
            os.ftruncate(lock, 0)
            os.pwrite(lock, who.encode(), 0)
            self._recover()
            if collects:
                self.collect()
        except BaseException:
            os.close(lock)
            raise
        return lock

    @contextlib.contextmanager
    def holding(self, who: str, *, collects: bool = True) -> Iterator[None]:
        """Hold the lock for one act."""
        lock = self.hold(who, collects=collects)
        try:
            yield
        finally:
            os.close(lock)

    @property
    def busy(self) -> str:
        """Who holds the lock now; empty if it is free."""
        try:
            lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder_in(lock)
        else:
            return "" if has_sandbox_ended(self._record, 0) else _holder_in(lock)
        finally:
            os.close(lock)

    @property
    def _record(self) -> Path:
        return self._directory / "sandbox"

    def prepare_sandbox_record(self) -> str:
        """The file in which the first process of a new sandbox is to be recorded. The lock is
        held."""
        prepare_record(self._record)
        return str(self._record)

    def refuse_living_sandbox(self, who: str) -> None:
        """Wait until nothing of the last sandbox is left. The lock is held: it is free as soon as
        a run is killed, and its sandbox still writes for a moment. Raises Refused."""
        if not has_sandbox_ended(self._record, ENDING_SECONDS):
            raise Refused(f"the sandbox of {who} has not ended yet", "try again in a moment")

    # ── for a run ─────────────────────────────────────────────────────────────────────────────────

    def open_views(
        self,
        trees: Sequence[str],
        watched: Sequence[tuple[str, str]],
        owner: tuple[int, int],
        session: str = "",
        hidden: Collection[str] | None = None,
    ) -> tuple[tuple[ReviewedTree, ...], int]:
        """Make the views of these trees ready to be mounted. Returns them, and how many changes of
        earlier runs they show. The lock is held. With `hidden`, each view is a copy, in which these
        paths are empty."""
        known = self._view()
        every = dict.fromkeys([*known.get("trees", ()), *trees])
        self._write_view([*every], watched, session)
        views = tuple(self._tree(path) for path in trees)
        pending = 0
        for view in views:
            _make_view(view, owner)
            with self._open([view]) as pairs:
                pair = pairs[view.path]
                before = read_record(view.base)
                reading = LayerReading(pair.upper, pair.lower, before)
                changes = reading.changes()
                _forget(pair, reading.same)
                record = record_tree(view.path)
                # The stamp from before the first change in the view.
                for key in (key for change in changes for key in keys_of(change.name)):
                    record.pop(key, None)
                    if key in before:
                        record[key] = before[key]
                write_record(view.base, record)
                pending += len(changes)
                if hidden is not None:
                    names = {p.removeprefix(f"{view.path}/") for p in hidden}
                    with self._trash() as trash:
                        _copy_of(view, pair).make(changes, names, trash)
        return views, pending

    @property
    def uncollected(self) -> bool:
        """Whether the copy of a run has changes that no process has looked at yet."""
        return any(os.path.lexists(f"{tree.directory}/copied") for tree in self.trees())

    def collect(self) -> None:
        """Take over what a sandbox changed in its copies, now that it has ended. The lock is
        held."""
        if not self.uncollected:
            return
        with self._open(self.trees()) as pairs, self._trash() as trash:
            for tree in self.trees():
                _copy_of(tree, pairs[tree.path]).collect(trash, read_record(tree.base))

    def shown_covers(self, views: Iterable[ReviewedTree], paths: Iterable[str]) -> set[str]:
        """Those of the paths at which the views show the person's own entry, so that it has to stay
        covered."""
        shown = set(paths)
        with self._open(views) as pairs:
            for tree, pair in pairs.items():
                for path in list(shown):
                    if path.startswith(f"{tree}/"):
                        name = path.removeprefix(f"{tree}/")
                        if not pair.upper.shows_lower(name):
                            shown.discard(path)
        return shown

    # ── for a person ──────────────────────────────────────────────────────────────────────────────

    def changes(self, *, marks: bool = True) -> list[FileChange]:
        """Every pending change of every tree."""
        found: list[FileChange] = []
        watched = [(str(path), str(why)) for path, why in self._view().get("watched", ())]
        with self._open(self.trees()) as pairs:
            for tree in self.trees():
                pair = pairs[tree.path]
                reading = LayerReading(pair.upper, pair.lower, read_record(tree.base))
                changes = reading.changes()
                if marks:
                    changes = mark_executed(changes, pair.upper, pair.lower, watched)
                found += changes
        return found

    @contextlib.contextmanager
    def contents(self) -> Iterator[dict[str, ReviewedPair]]:
        """Both sides of each tree, for a diff."""
        with self._open(self.trees()) as pairs:
            yield pairs

    def apply(self, plan: ApplyPlan, stopped: Callable[[], bool] | None = None) -> ApplyOutcome:
        """Do the plan, all of it or nothing: also where `stopped` says that the person wants it to
        end. The lock is held. Raises ResourceUnusable."""
        if not plan.steps:
            return ApplyOutcome(0)
        self._begin_act("apply")
        with self._open(self.trees()) as pairs, self._trash() as trash:
            transaction = Transaction.begin(self._under_way, plan.steps, pairs, trash)
            return self._finish(transaction, pairs, stopped)

    def undo(self) -> ApplyOutcome:
        """Undo the last apply; its changes are pending again. The lock is held."""
        if not self.can_undo:
            raise Refused("there is no apply to undo")
        self._refuse_lost_tree()
        self._begin_act("undo")
        (self._directory / "applied" / "undoing").touch(0o600)
        return self._undo()

    def _refuse_lost_tree(self) -> None:
        with self._open(self.trees()) as pairs, self._trash() as trash:
            last = Transaction(str(self._directory / "applied"), pairs, trash)
            last.close()
            lost = next((step.tree for step in last.steps if step.tree not in pairs), None)
        if lost is not None:
            raise Refused(f"nothing was undone: {visible(lost)} is no directory any more")

    def discard(self, names: Sequence[FileChange] | None) -> None:
        """Drop these changes; None: all of them, read or not, also those in a copy that cannot be
        collected. The lock is held."""
        self._begin_act("discard")
        if names is None:
            for tree in self.trees():
                own = os.stat(tree.upper)
                self._throw_away(os.path.basename(tree.directory))
                # Empty, and not gone: `undo` makes the changes of the last apply pending again.
                _make_view(tree, (own.st_uid, own.st_gid))
            return
        with self._open(self.trees()) as pairs:
            for path, pair in pairs.items():
                _forget(pair, [change.name for change in names if change.tree == path])

    def trees(self) -> list[ReviewedTree]:
        """The trees that have a view."""
        return [
            tree
            for tree in map(self._tree, map(str, self._view().get("trees", ())))
            if os.path.isdir(tree.upper) and os.path.isdir(tree.path)
        ]

    # ── apply and undo ────────────────────────────────────────────────────────────────────────────

    @property
    def _under_way(self) -> str:
        return str(self._directory / "apply")

    def _recover(self) -> None:
        """Finish the apply or the undo of a process that was killed."""
        self.recovered = []
        if os.path.lexists(self._directory / "applied" / "undoing"):
            self.recovered.append(("undo", self._undo().done))
        if os.path.lexists(f"{self._under_way}/steps"):
            with self._open(self.trees()) as pairs, self._trash() as trash:
                outcome = self._finish(Transaction(self._under_way, pairs, trash), pairs)
            self.recovered.append(("apply", outcome.done))
        self._bring_up()

    def _finish(
        self,
        transaction: Transaction,
        pairs: dict[str, ReviewedPair],
        stopped: Callable[[], bool] | None = None,
    ) -> ApplyOutcome:
        try:
            left = self._forward(transaction, stopped)
            results = transaction.done()
            steps = [s for n, s in enumerate(transaction.steps) if results[n] != SKIPPED]
            for tree, pair in pairs.items():
                mine = [step for step in steps if step.tree == tree]
                # A directory that was made may still hold changes that are held back.
                _forget(pair, [s.name for s in mine if s.action is not Action.MKDIR])
                pair.upper.prune(s.name for s in mine)
        finally:
            transaction.close()
        if os.path.isdir(self._under_way):
            self._put_below()
            os.rename(self._under_way, self._directory / "applied")
        return ApplyOutcome(len(steps), tuple(step.path for step in left))

    def _forward(
        self, transaction: Transaction, stopped: Callable[[], bool] | None
    ) -> list[ApplyStep]:
        failed, written = f"{self._under_way}/failed", f"{self._under_way}/written"
        reason: OSError | None = None
        if os.path.lexists(written):
            results = transaction.done()
            return [s for n, s in enumerate(transaction.steps) if results[n] == SKIPPED]
        if not os.path.lexists(failed):
            try:
                left = transaction.go_forward(stopped)
                Path(written).touch(0o600)
                return left
            except OSError as error:
                reason = error
                Path(failed).touch(0o600)
        transaction.go_back(pending=False)
        self._throw_away("apply")
        raise ResourceUnusable(
            f"nothing was applied: {visible(str(reason or 'an earlier apply failed'))}"
        )

    def _undo(self) -> ApplyOutcome:
        with self._open(self.trees()) as pairs, self._trash() as trash:
            transaction = Transaction(str(self._directory / "applied"), pairs, trash)
            try:
                left = transaction.go_back(pending=True)
                steps = transaction.steps
            finally:
                transaction.close()
            for tree in self.trees():
                record, lower = read_record(tree.base), pairs[tree.path].lower
                for step in steps:
                    if step.tree == tree.path and step not in left:
                        note_entry(record, lower, step.name)
                write_record(tree.base, record)
        self._throw_away("applied")
        self._bring_up()
        return ApplyOutcome(len(steps) - len(left), tuple(step.path for step in left))

    # ── the applies before the last one ───────────────────────────────────────────────────────────

    def _earlier(self) -> list[str]:
        """Their directories, the oldest first."""
        with contextlib.suppress(FileNotFoundError):
            numbers = [int(name) for name in os.listdir(self._directory / "earlier")]
            return [f"earlier/{number}" for number in sorted(numbers)]
        return []

    def _put_below(self) -> None:
        """Make room for a newer apply."""
        if not self.can_undo:
            return
        (self._directory / "earlier").mkdir(mode=0o700, exist_ok=True)
        known = self._earlier()
        number = int(known[-1].removeprefix("earlier/")) + 1 if known else 1
        os.rename(self._directory / "applied", self._directory / f"earlier/{number}")
        for name in known[: max(0, len(known) + 2 - MAX_UNDO)]:
            self._throw_away(name)

    def _bring_up(self) -> None:
        """Let the apply before the last one be the last, when that was undone."""
        known = self._earlier()
        if known and not self.can_undo:
            os.rename(self._directory / known[-1], self._directory / "applied")

    # ── files ─────────────────────────────────────────────────────────────────────────────────────

    def _tree(self, path: str) -> ReviewedTree:
        name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return ReviewedTree(path, str(self._directory / name))

    def _view(self) -> dict[str, Any]:
        try:
            text = (self._directory / "view.json").read_bytes()[:MAX_VIEW]
            found = json.loads(text)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write_view(
        self, trees: Sequence[str], watched: Sequence[tuple[str, str]], session: str
    ) -> None:
        table = {
            "session": session,
            "project": self.project,
            "policy": self._policy,
            "trees": trees,
            "watched": watched,
        }
        temporary = self._directory / "view.json.new"
        temporary.write_text(json.dumps(table), encoding="ascii")
        temporary.replace(self._directory / "view.json")

    @contextlib.contextmanager
    def _open(self, trees: Iterable[ReviewedTree]) -> Iterator[dict[str, ReviewedPair]]:
        with contextlib.ExitStack() as opened:
            pairs = {}
            trash = opened.enter_context(self._trash())
            for tree in trees:
                lower = opened.enter_context(TreeDirectory(tree.path))
                _permit_owner(tree.upper)
                upper = UpperLayer(tree.upper, lower, trash)
                opened.callback(upper.close)
                pairs[tree.path] = ReviewedPair(lower, upper)
            yield pairs

    @contextlib.contextmanager
    def _trash(self) -> Iterator[Trash]:
        trash = Trash(str(self._directory / "trash"))
        try:
            yield trash
        finally:
            trash.close()

    def _throw_away(self, name: str) -> None:
        """Move a file or directory of this store to the trash."""
        own = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._trash() as trash, contextlib.suppress(FileNotFoundError):
                trash.take(own, name, directory=True)
        finally:
            os.close(own)

    def empty_trash(self, seconds: float | None = TRASH_SECONDS) -> None:
        """Remove what is no longer needed, for so long at most. Needs no lock."""
        if os.path.lexists(self._directory / "trash"):
            with self._trash() as trash:
                trash.empty(seconds)


def _holder_in(lock: int) -> str:
    """Who holds the lock, or held it last."""
    return visible(os.pread(lock, 200, 0).decode("utf-8", "replace")) or "another process"


def _lock_soon(lock: int) -> None:
    """Take a lock that may be held for a moment by a process that only asks who has it."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _copy_of(tree: ReviewedTree, pair: ReviewedPair) -> CopiedTree:
    return CopiedTree(tree.directory, pair.lower, pair.upper)


def _forget(pair: ReviewedPair, names: Sequence[str]) -> None:
    """Take entries out of a layer, the outer ones first."""
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        pair.upper.forget(name)
    pair.upper.prune(names)


def _permit_owner(upper: str) -> None:
    """Attack: code inside closes the top of its view, `chmod 0 .`, so that its changes cannot be
    read."""
    mode = os.stat(upper).st_mode & 0o777
    if mode & 0o700 != 0o700:
        os.chmod(upper, mode | 0o700)


def _make_view(view: ReviewedTree, owner: tuple[int, int]) -> None:
    mode = os.stat(view.path).st_mode & 0o777
    for name in ("upper", "work"):
        os.makedirs(f"{view.directory}/{name}", mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(f"{view.directory}/{name}", *owner)
    os.chmod(view.upper, mode | 0o700)
