"""Finds, among the entries of a view, the files that the host may execute (I11).

The rules are those of a direct run (`sandbox.files`). The view is the union of both sides: an entry
that was removed counts as well, since its removal decides what the host executes.
"""

from __future__ import annotations

import os
import unicodedata
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.changes.entry import ChangeKind, EntryKind, ExecutedBy
from keyhole.changes.upper_layer import UpperLayer, is_whiteout
from keyhole.sandbox.files.executable_finder import ExecutableFinder
from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.paths import is_within
from keyhole.sandbox.files.tree_walk import DirectoryListing, TreeTooLarge, WalkBudget
from keyhole.sandbox.files.triggers import (
    GIT_CONFIGS,
    GIT_DATA,
    GIT_HOOKS_DIR,
    GIT_POINTERS,
    GIT_UNFINISHED,
    PLACE,
    REPOSITORY,
    git_data,
    names_a_place,
    trigger_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyhole.changes.entry import FileChange
    from keyhole.changes.tree_directory import TreeDirectory

_TOO_LARGE = ExecutedBy("the tree is too large to be searched for files that the host executes")
_WHOLE_REPOSITORY = "the repository itself would be removed"
_COMPLETED = "it completes a repository whose settings lie there already"
_PARTS = frozenset({"HEAD", "objects", "refs", "commondir"})
"""Entries that make a directory a repository."""
_ACTING = frozenset({GIT_HOOKS_DIR, *GIT_UNFINISHED})
"""Directories of a repository whose files git runs or obeys."""
_DISGUISED = "on some file systems its name is that of a file which the host executes"


def mark_executed(
    changes: Sequence[FileChange],
    upper: UpperLayer,
    lower: TreeDirectory,
    watched: Iterable[tuple[str, str]] = (),
) -> list[FileChange]:
    """The same changes of one tree, with a reason at those that the host may execute."""
    if not changes:
        return []
    try:
        search = _MergedSearch(upper, lower, watched)
        found = search.found()
    except TreeTooLarge:
        return [replace(change, executed=_TOO_LARGE) for change in changes]
    removed = [
        change.path
        for change in changes
        if change.change is ChangeKind.REMOVED and change.name.rpartition("/")[2] == ".git"
    ]
    completed = _completed(changes, found, search.repositories)
    marked = []
    for change in changes:
        reason = found.get(change.path) or _by_name(change)
        for repository in removed:
            if is_within(change.path, repository):
                reason = ExecutedBy(_WHOLE_REPOSITORY, repository)
        if change.kind is EntryKind.DIRECTORY and not removed:
            reason = None  # its entries are marked
        for repository in completed:
            if is_within(change.path, repository):
                reason = ExecutedBy(_COMPLETED, repository)
        marked.append(replace(change, executed=reason) if reason else change)
    return marked


def _completed(
    changes: Sequence[FileChange], found: Iterable[str], repositories: Iterable[str]
) -> list[str]:
    """Directories that become repositories by these changes, with settings that do not change.

    Attack: a file `config` is applied, because it lies in no repository; a later run adds the rest.
    """
    changed = {change.path for change in changes}
    made = {
        os.path.dirname(change.path)
        for change in changes
        if change.change is not ChangeKind.REMOVED and os.path.basename(change.path) in _PARTS
    }
    settings = [path for path in found if path not in changed]
    return [
        each
        for each in repositories
        if each in made and not each.endswith("/.git") and any(is_within(p, each) for p in settings)
    ]


def _by_name(change: FileChange) -> ExecutedBy | None:
    name = change.name.rpartition("/")[2]
    if change.kind is EntryKind.LINK and names_a_place(name):
        return ExecutedBy(PLACE)
    if is_git_setting(change.name):
        return ExecutedBy(REPOSITORY)
    return ExecutedBy(_DISGUISED) if is_disguised(change.name) else None


def is_git_setting(path: str) -> bool:
    """Whether git would act on a file of this path, wherever in a `.git` directory it lies.

    The search finds what lies in a repository. Attack: the sandbox decides what looks like one, and
    what it hides in. So names alone count here too, but for the data of `.git` itself, in which a
    branch may be called `hooks/x`.
    """
    parts = [_fold(part) for part in path.split("/")]
    if ".git" not in parts[:-1]:
        return False
    inside = parts[len(parts) - parts[::-1].index(".git") :]
    if not inside or inside[0] in GIT_DATA or inside[-1].endswith(".sample"):
        return False
    acts = not _ACTING.isdisjoint(inside[:-1])
    return acts or inside[-1] in (*GIT_CONFIGS, *GIT_POINTERS)


def is_disguised(path: str) -> bool:
    """Whether a file system that ignores case, or characters that are not seen, takes a path for
    one that the host acts on. `git~1` is the short name of `.git` on Windows."""
    parts = path.split("/")
    folded = [_fold(part) for part in parts]
    if folded == parts:
        return False
    for number, (name, plain) in enumerate(zip(parts, folded, strict=True)):
        parent = folded[number - 1] if number else ""
        known = plain == ".git" or any(trigger_of(parent, plain, kind) for kind in MountKind)
        if known and (name != plain or parent != "".join(parts[number - 1 : number])):
            return True
    return False


def _fold(name: str) -> str:
    seen = "".join(c for c in name if unicodedata.category(c) != "Cf")
    plain = seen.casefold().rstrip(". ") or name
    return ".git" if plain == "git~1" else plain


class _MergedSearch:
    """A walk over both sides, level by level."""

    def __init__(
        self, upper: UpperLayer, lower: TreeDirectory, watched: Iterable[tuple[str, str]]
    ) -> None:
        self._upper = upper
        self._lower = lower
        self._finder = ExecutableFinder((lower.path,), watched)
        self._budget = WalkBudget()
        self._found: dict[str, ExecutedBy] = {}
        self.repositories: list[str] = []
        """Directories that git takes for repositories."""

    def found(self) -> dict[str, ExecutedBy]:
        """The reasons by path."""
        top = self._lower.path
        self._walk("", top)
        while self._finder.pending:
            detour = self._finder.pending.popleft()
            if not is_within(detour.path, top):
                continue
            self._finder.enter(detour)
            self._walk(detour.path.removeprefix(top).strip("/"), detour.path, detour.name)
        if self._finder.crowded:
            raise TreeTooLarge
        return self._found

    def _walk(self, start: str, root: str, called: str = "") -> None:
        todo = deque([start])
        while todo:
            where = todo.popleft()
            listing = self._listing(where)
            self._budget.spend(len(listing.files) + len(listing.dirs) + len(listing.links))
            for entry in self._finder.look(listing, root, called):
                if entry.kind is MountKind.DIR and entry.trail is None:
                    if entry.why == REPOSITORY:
                        self.repositories.append(entry.path)
                    continue
                group = entry.group.path if entry.group and entry.why != REPOSITORY else ""
                self._found.setdefault(entry.path, ExecutedBy(entry.why, group))
                # A hook may be a link to a script of the project: that is what is executed.
                for path in entry.trail.entries if entry.trail else ():
                    self._found.setdefault(path, ExecutedBy(entry.why))
            called = ""
            data = git_data(listing.path, {*listing.files, *listing.dirs})
            names = [name for name in listing.dirs if name not in data]
            todo.extend(f"{where}/{name}" if where else name for name in names)

    def _listing(self, where: str) -> DirectoryListing:
        top = self._lower.path
        listing = DirectoryListing(f"{top}/{where}" if where else top)
        kinds = _kinds(self._lower, where)
        for name, kind in _kinds(self._upper, where).items():
            if kind is EntryKind.SPECIAL and is_whiteout(
                self._upper.look(f"{where}/{name}" if where else name)
            ):
                continue
            kinds[name] = kind
        lists = {
            EntryKind.DIRECTORY: listing.dirs,
            EntryKind.LINK: listing.links,
            EntryKind.FILE: listing.files,
        }
        for name, kind in kinds.items():
            lists.get(kind, listing.specials).append(name)
        return listing


def _kinds(tree: TreeDirectory, where: str) -> dict[str, EntryKind]:
    """The kinds of a directory's entries, without looking at each; none if it is no directory."""
    found = {}
    try:
        with os.scandir(tree.directory(where)) as entries:
            for entry in entries:
                if entry.is_symlink():
                    found[entry.name] = EntryKind.LINK
                elif entry.is_dir(follow_symlinks=False):
                    found[entry.name] = EntryKind.DIRECTORY
                elif entry.is_file(follow_symlinks=False):
                    found[entry.name] = EntryKind.FILE
                else:
                    found[entry.name] = EntryKind.SPECIAL
    except OSError:
        return {}
    return found
