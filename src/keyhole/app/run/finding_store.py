"""Findings of runs: files left behind that the host may execute, until they are dismissed (I11).

A file for each project, in the state directory, which no sandbox can write or see. A finding goes
away by itself when the file is again as it was before the run, or is gone. Dismissing one remembers
the file's content, so that a later change is reported again.

A run stores its snapshot from the start beside that, locked, and the record of its sandbox's first
process. If the run is killed before it could compare, the next reader compares, once nothing of the
sandbox lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from keyhole.app.session.session_register import read_own
from keyhole.sandbox.files.comparison import (
    Comparison,
    Finding,
    Snapshot,
    SnapshotEntry,
    compare_snapshots,
    take_snapshot,
)
from keyhole.sandbox.files.digests import FileStamp, digest_of
from keyhole.sandbox.files.executable_finder import FindingFold, FindingGroup
from keyhole.sandbox.files.mount_plan import ComparisonScope
from keyhole.sandbox.first_process import ENDING_SECONDS, has_sandbox_ended, prepare_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

MAX_OPEN = 200
"""Findings that are kept for a project; further ones are counted."""
MAX_DISMISSED = 500
"""Dismissed contents that are remembered for a project; an older one is reported again."""
MAX_PROJECTS = 200
"""Projects with findings; the one that was looked at longest ago is forgotten first."""
MAX_SIGHTS = 20_000
"""Entries of a run's first snapshot that are kept. If there are more and the run is killed, nothing
is compared."""
MAX_BYTES = 16 << 20
"""Bytes of one file: paths have up to 4 KiB each, but rarely more than 100 bytes."""

INTERRUPTED = "a run that did not end in order"


class OpenFinding(Struct, frozen=True):
    """A finding that was not dismissed."""

    finding: Finding
    session: str
    since: int
    """When it was found, in seconds of the host's clock."""

    @property
    def id(self) -> str:
        """Derived from the path and the content: an unseen change cannot be dismissed."""
        return digest_of(f"{self.finding.path}\0{self.finding.now}")[:10]


class ProjectFindings(Struct, frozen=True):
    """The findings of one project."""

    project: str
    scope: ComparisonScope = ComparisonScope(())
    open: tuple[OpenFinding, ...] = ()
    uncounted: int = 0
    """Findings beyond the bound, which were reported once."""
    dismissed: tuple[tuple[str, str], ...] = ()
    """Paths, each with a digest of the content that was dismissed."""

    def renewed(self, now: Snapshot) -> ProjectFindings:
        """The same without findings that are gone, unchanged or dismissed, and with the present
        content."""
        digests = now.digests()
        kept: list[OpenFinding] = []
        for each in self.open:
            finding = each.finding
            if not now.knows(finding.path, finding.why):
                kept.append(each)
                continue
            digest = digests.get(finding.path, "")
            if digest and digest != finding.before and (finding.path, digest) not in self.dismissed:
                kept.append(replace(each, finding=replace(finding, now=digest)))
        return replace(self, open=tuple(kept))

    def with_findings(self, findings: Iterable[Finding], session: str) -> ProjectFindings:
        """The same with these added; a known one keeps the content before its first change."""
        found = {each.finding.path: each for each in self.open}
        for new in findings:
            known = found.pop(new.path, None)
            if known is not None:
                new = replace(new, before=known.finding.before, change=known.finding.change)
            if new.now != new.before and (new.path, new.now) not in self.dismissed:
                found[new.path] = OpenFinding(new, session, int(time.time()))
        kept = tuple(found.values())
        return replace(
            self, open=kept[:MAX_OPEN], uncounted=self.uncounted + max(len(kept) - MAX_OPEN, 0)
        )

    def without(self, ids: Iterable[str]) -> ProjectFindings:
        """The same, with these dismissed."""
        chosen = frozenset(ids)
        gone = [(e.finding.path, e.finding.now) for e in self.open if e.id in chosen]
        kept = tuple(each for each in self.open if each.id not in chosen)
        dismissed = dict.fromkeys((*(d for d in self.dismissed if d not in gone), *gone))
        return replace(
            self,
            open=kept,
            uncounted=self.uncounted if kept else 0,
            dismissed=tuple(dismissed)[-MAX_DISMISSED:],
        )

    def tells(self, finding: Finding) -> bool:
        """Whether a run's finding is new to the person."""
        return (finding.path, finding.now) not in self.dismissed


class FindingStore:
    """The findings of all projects, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, project: Path | str) -> ProjectFindings:
        """The findings of a project; empty if there are none."""
        return _book(self._load(self._file(str(project))), str(project))

    def every(self) -> list[ProjectFindings]:
        """The findings of each project that has any."""
        books = (_book(self._load(path), "") for path in sorted(self._directory.glob("*.json")))
        return [book for book in books if book.project and book.open]

    def known(self, project: Path | str) -> bool:
        """Whether the project may have findings. Quick, because every run asks."""
        if os.path.lexists(self._file(str(project))):
            return True
        return any(self._directory.glob(f"{_key(str(project))}.*.run"))

    @contextlib.contextmanager
    def changing(self, project: Path | str) -> Iterator[list[ProjectFindings]]:
        """The project's findings as the one element of a list; a changed element is written."""
        with self._locked():
            book = self.read(project)
            held = [book]
            yield held
            if held[0] != book:
                self._write(held[0])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the directory's lock."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    # ── runs that have not compared yet ───────────────────────────────────────────────────────────

    def begin(self, project: Path | str, session: str, before: Snapshot) -> int:
        """Store the snapshot from a run's start. Returns the file's descriptor, which is locked
        until the run ends."""
        path = self._run_file(project, session)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        text = json.dumps(_snapshot_table(before)).encode()
        with self._locked():
            descriptor = os.open(path, flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for other in self._unheld("*.run", keep=MAX_PROJECTS):
                _remove_run(other)
        try:
            prepare_record(_sandbox_of(path))
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(text)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def end(self, project: Path | str, session: str, descriptor: int) -> None:
        """The run has compared: remove its snapshot."""
        _remove_run(self._run_file(project, session))
        os.close(descriptor)

    def sandbox_record(self, project: Path | str, session: str) -> str:
        """The file in which the first process of a run's sandbox is to be recorded."""
        return str(_sandbox_of(self._run_file(project, session)))

    def interrupted(self, project: Path | str) -> list[tuple[str, Comparison]]:
        """Compare for runs that were killed: each session with its result."""
        with self._locked():
            dead = self._unheld(f"{_key(str(project))}.*.run")
        found = []
        for path in dead:
            if not has_sandbox_ended(_sandbox_of(path), ENDING_SECONDS):
                continue  # code inside still writes: a later reader compares
            comparison = self._compare(path)
            if comparison is not None:
                found.append((path.name.split(".")[1], comparison))
        return found

    def forget(self, project: Path | str, sessions: Iterable[str]) -> None:
        """Remove the snapshots of these runs, whose findings are stored."""
        for session in sessions:
            _remove_run(self._run_file(project, session))

    def _run_file(self, project: Path | str, session: str) -> Path:
        return self._directory / f"{_key(str(project))}.{session}.run"

    def _unheld(self, pattern: str, keep: int = 0) -> list[Path]:
        """Files of runs that no longer live, except the `keep` youngest."""
        files = sorted(self._directory.glob(pattern), key=_written)
        return [path for path in files[: max(len(files) - keep, 0)] if not _is_held(path)]

    def _compare(self, path: Path) -> Comparison | None:
        """Compare for one run that was killed; None if another process has done so, or the run has
        just ended."""
        before = _snapshot(self._load(path))
        if before is None:
            return Comparison((), (INTERRUPTED,)) if os.path.lexists(path) else None
        return compare_snapshots(before, take_snapshot(before.scope))

    # ── files ─────────────────────────────────────────────────────────────────────────────────────

    def _file(self, project: str) -> Path:
        return self._directory / f"{_key(project)}.json"

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            found = json.loads(read_own(path, MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, book: ProjectFindings) -> None:
        target = self._file(book.project)
        if not (book.open or book.dismissed or book.uncounted):
            target.unlink(missing_ok=True)
            return
        temporary = self._directory / f"{secrets.token_hex(8)}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="ascii") as file:
            json.dump(_table(book), file)
        temporary.replace(target)
        files = sorted(self._directory.glob("*.json"), key=_written)
        for path in files[:-MAX_PROJECTS]:
            path.unlink(missing_ok=True)


def _sandbox_of(run: Path) -> Path:
    """The record of a run's sandbox."""
    return run.with_suffix(".sandbox")


def _remove_run(path: Path) -> None:
    path.unlink(missing_ok=True)
    _sandbox_of(path).unlink(missing_ok=True)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # it is gone meanwhile


def _is_held(path: Path) -> bool:
    """Whether the run that wrote it still lives."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return True  # gone, so that no action is needed
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _key(project: str) -> str:
    return hashlib.sha256(os.fsencode(project)).hexdigest()[:32]


# ── as JSON, and back: whatever is no book is an empty one ────────────────────────────────────────


def _table(book: ProjectFindings) -> dict[str, object]:
    return {
        "project": book.project,
        "writable": book.scope.writable,
        "watched": book.scope.watched,
        "open": [
            [f.path, f.change, f.why, f.detail, f.before, f.now, each.session, each.since]
            for each in book.open
            for f in (each.finding,)
        ],
        "uncounted": book.uncounted,
        "dismissed": book.dismissed,
    }


def _book(table: dict[str, Any], project: str) -> ProjectFindings:
    try:
        name = str(table["project"])
        if project and name != project:
            return ProjectFindings(project)
        return ProjectFindings(
            name,
            _scope(table),
            tuple(
                OpenFinding(Finding(*map(str, row[:6])), str(row[6]), int(row[7]))
                for row in table["open"]
            )[:MAX_OPEN],
            int(table["uncounted"]),
            tuple((str(path), str(digest)) for path, digest in table["dismissed"]),
        )
    except (KeyError, TypeError, ValueError, IndexError):
        return ProjectFindings(project)


def _scope(table: dict[str, Any]) -> ComparisonScope:
    watched = tuple((str(path), str(why)) for path, why in table["watched"])
    return ComparisonScope(tuple(map(str, table["writable"])), watched)


def _snapshot_table(found: Snapshot) -> dict[str, object]:
    scope: dict[str, object] = {"writable": found.scope.writable, "watched": found.scope.watched}
    if len(found.sights) > MAX_SIGHTS:
        return scope
    rows = [
        [path, s.why, s.mark.content, s.mark.identity, s.mark.settled,
         [s.group.path, s.group.why, s.group.fold.name] if s.group else None]
        for path, s in found.sights.items()
    ]  # fmt: skip
    return scope | {"sights": rows, "unseen": found.unseen}


def _snapshot(table: dict[str, Any]) -> Snapshot | None:
    try:
        sights = {
            str(path): SnapshotEntry(
                str(why),
                FileStamp(str(content), str(identity), bool(settled)),
                FindingGroup(str(group[0]), str(group[1]), FindingFold[group[2]])
                if group
                else None,
            )
            for path, why, content, identity, settled, group in table["sights"]
        }
        return Snapshot(sights, tuple(map(str, table["unseen"])), _scope(table))
    except (KeyError, TypeError, ValueError, IndexError):
        return None
