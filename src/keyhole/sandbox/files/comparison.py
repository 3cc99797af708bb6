"""What a run left behind that the host may execute: looked at before and after, and compared (I11).

Called outside, around the run. It reads what hostile code has just written: every walk is bounded,
no link is followed, nothing but a regular file is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING

from keyhole.model.text import visible
from keyhole.model.value import dataclass, field
from keyhole.sandbox.files.credentialfiles import DEPENDENCIES
from keyhole.sandbox.files.fileplan import Kind
from keyhole.sandbox.files.paths import is_below, parents
from keyhole.sandbox.files.survey import Budget, Listing, TooLarge, walk
from keyhole.sandbox.files.triggers import (
    ENVIRONMENT,
    GIT_CONFIGS,
    GIT_DATA,
    GIT_HOOKS_DIR,
    GIT_POINTERS,
    GIT_TODO,
    POINTER,
    REPOSITORY,
    is_git_directory,
    trigger_of,
)

if TYPE_CHECKING:
    from keyhole.sandbox.files.fileplan import FilePlan

MAX_DIGEST = 1 << 20
"""Bytes of a file that are compared by content; larger ones by identity, size and change time,
which no call can set back."""
MAX_LINES = 40
"""Findings that are named; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Sight:
    """One thing that the host may execute: why, and its content at the time."""

    why: str
    mark: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of them, by path."""

    sights: dict[str, Sight] = field(repr=False)
    unseen: tuple[str, ...] = ()
    """Trees and directories that could not be looked through."""


def snapshot(plan: FilePlan, budget: Budget | None = None) -> Snapshot:
    """Look through the trees that the sandbox can write."""
    looking = _Looking(frozenset(plan.watched))
    budget = budget or Budget()
    for tree in plan.writable:
        if any(is_below(tree, other) for other in plan.writable):
            continue
        try:
            if not os.path.isdir(tree):
                looking.note_file(tree)
                continue
            for listing in walk(tree, budget):
                looking.look_at(listing, tree)
        except TooLarge:
            looking.unseen.append(tree)
    return Snapshot(looking.sights, tuple(looking.unseen))


def compare(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """A line for each thing that appeared or changed: *files your host may execute*."""
    changed, new = [], []
    for path, sight in sorted(after.sights.items()):
        earlier = before.sights.get(path)
        if earlier == sight:
            continue
        if earlier is not None:
            changed.append(f"changed: {visible(path)} ({sight.why})")
        elif not _is_part_of_new(path, sight, before, after):
            new.append(f"new: {visible(path)} ({sight.why})")
    lines = [*changed, *new]  # what the host already trusts comes first
    folded = len(lines) - MAX_LINES
    if folded > 0:
        lines[MAX_LINES:] = [f"and {folded} more"]
    unseen = [path for path in after.unseen if path not in before.unseen] or list(after.unseen)
    lines += [f"not looked through: {visible(path)}" for path in unseen[:MAX_LINES]]
    return tuple(lines)


def _is_part_of_new(path: str, sight: Sight, before: Snapshot, after: Snapshot) -> bool:
    """A new repository is one finding, not one for each of its hooks; but nothing else that lies
    in it is: a directory is made to look like a repository in three words."""
    return any(
        p not in before.sights and after.sights[p].why == sight.why
        for p in parents(path)
        if p in after.sights
    )


class _Looking:
    """Collects the sights of one snapshot."""

    def __init__(self, watched: frozenset[str]) -> None:
        self._watched = watched
        self._inside: dict[str, str] = {}
        self.sights: dict[str, Sight] = {}
        self.unseen: list[str] = []

    def note_file(self, path: str) -> None:
        """A tree that is one file."""
        found = trigger_of(os.path.basename(os.path.dirname(path)), os.path.basename(path))
        if found:
            self._note(path, found.why)

    def look_at(self, listing: Listing, root: str) -> None:
        """One directory."""
        where = listing.path
        if listing.closed:
            self.unseen.append(where)
            return
        why = self._inside.pop(where, None) or (REPOSITORY if where in self._watched else None)
        if why:
            self._note_all(listing, why)
            return
        names = {*listing.files, *listing.dirs, *listing.links}
        if is_git_directory(where, names):
            self._look_at_repository(listing)
        if ".git" in listing.files or ".git" in listing.links:
            self._note(f"{where}/.git", POINTER)
        if not DEPENDENCIES.isdisjoint(where.removeprefix(root).split("/")):
            return
        if "pyvenv.cfg" in names:
            self._look_at_environment(where)
        parent = os.path.basename(where)
        for name in (*listing.files, *listing.links):
            if found := trigger_of(parent, name):
                self._note(f"{where}/{name}", found.why)
        for name in listing.dirs:
            found = trigger_of(parent, name)
            if found and found.kind is Kind.DIR:
                self._inside[f"{where}/{name}"] = found.why

    def _note_all(self, listing: Listing, why: str) -> None:
        """Everything in a directory whose content the host acts on."""
        for name in (*listing.files, *listing.links):
            if not name.endswith(".sample"):
                self._note(f"{listing.path}/{name}", why)
        for name in listing.dirs:
            self._inside[f"{listing.path}/{name}"] = why

    def _look_at_repository(self, listing: Listing) -> None:
        where = listing.path
        self.sights[where] = Sight(REPOSITORY, "")
        for name in (*GIT_CONFIGS, *GIT_POINTERS, GIT_HOOKS_DIR):
            if name in listing.files or name in listing.links:
                self._note(f"{where}/{name}", REPOSITORY)
        if GIT_HOOKS_DIR in listing.dirs:
            self._inside[f"{where}/{GIT_HOOKS_DIR}"] = REPOSITORY
        if os.path.lexists(f"{where}/{GIT_TODO}"):
            self._note(f"{where}/{GIT_TODO}", "git runs its exec lines when the rebase continues")
        if where.endswith(".git") or "/.git/" in where:
            # Elsewhere such names may be anything: what looks like a bare repository is walked.
            listing.dirs[:] = [name for name in listing.dirs if name not in GIT_DATA]

    def _look_at_environment(self, where: str) -> None:
        """A Python environment is one finding: its programs, whoever changed which of them."""
        digest = hashlib.sha256()
        try:
            for name in sorted(os.listdir(f"{where}/bin")):
                digest.update(os.fsencode(f"{name}\0{_mark(f'{where}/bin/{name}')}\0"))
        except OSError:
            return
        self.sights[where] = Sight(ENVIRONMENT, digest.hexdigest())

    def _note(self, path: str, why: str) -> None:
        self.sights[path] = Sight(why, _mark(path))


def _mark(path: str) -> str:
    """What changes when the thing does."""
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return f"link {os.readlink(path)}"
        executable = bool(found.st_mode & 0o111)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_DIGEST:
            return f"{executable} {found.st_ino} {found.st_size} {found.st_ctime_ns}"
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(file, "rb") as content:
            digest = hashlib.sha256(content.read(MAX_DIGEST + 1)).hexdigest()
    except OSError as error:
        return f"error {error.errno}"
    return f"{executable} {digest}"
