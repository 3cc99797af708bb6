"""Finds files in a tree that the host may execute later, one directory after another (I11).

`tree_inspection.py` makes them read-only inside, `comparison.py` reports them: both use the same
rules. A link counts as its target. A directory that a link leads to counts under the link's name
too, and is searched once more for that (`pending`).
"""

from __future__ import annotations

import enum
import os
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.sandbox.files.mount_plan import MountKind
from keyhole.sandbox.files.paths import is_within, parents
from keyhole.sandbox.files.triggers import (
    CHECKOUTS,
    ENVIRONMENT,
    GIT_CONFIGS,
    GIT_HOOKS_DIR,
    GIT_POINTERS,
    GIT_UNFINISHED,
    NODE_MODULES,
    NODE_PROGRAMS,
    OWN_WORK,
    PACKAGES,
    PLACE,
    POINTER,
    PROGRAMS,
    REPOSITORY,
    SEARCHED,
    UNFINISHED,
    Trigger,
    TriggerGuard,
    beside_envrc,
    holds_programs,
    is_environment,
    is_git_directory,
    is_known_place,
    names_a_place,
    runs_at_start,
    trigger_of,
)
from keyhole.system.symlinks import Trail, follow
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.sandbox.files.tree_walk import DirectoryListing

MAX_DETOURS = 1000
"""Links to directories that are looked through under the link's name; a project has a dozen."""
FOLLOW_SECONDS = 4.0
"""Time that following links may take in one look; ten thousand take a tenth of a second."""


_NOWHERE = Trail("", (), ())


class FindingFold(enum.Enum):
    """When changes in one directory are reported in one line."""

    MANY = enum.auto()
    """When there are more than a few."""
    NEW = enum.auto()
    """When all of it is new."""
    ALWAYS = enum.auto()


class FindingGroup(Struct, frozen=True):
    """Things that belong together in a report."""

    path: str
    why: str
    fold: FindingFold = FindingFold.MANY


class ExecutableEntry(Struct, frozen=True):
    """One file or directory that the host may execute."""

    path: str
    why: str
    kind: MountKind = MountKind.FILE
    guard: TriggerGuard = TriggerGuard.REPORTED
    group: FindingGroup | None = None
    trail: Trail | None = None
    """Where it leads, if it is a link."""


class _Inside(Struct, frozen=True):
    """Facts about a directory whose whole content counts."""

    group: FindingGroup
    guard: TriggerGuard = TriggerGuard.REPORTED
    """The guard of its entries."""
    covered: bool = False
    """Whether it is already read-only as a whole."""


class LinkedDirectory(Struct, frozen=True):
    """A directory that is searched under a link's name."""

    path: str
    name: str
    link: str
    inside: _Inside | None = None


class ExecutableFinder:
    """Follows a walk over the trees in `roots`, parents first."""

    def __init__(self, roots: Iterable[str], watched: Iterable[tuple[str, str]] = ()) -> None:
        self._roots = tuple(roots)
        self._inside: dict[str, _Inside] = {
            path: _Inside(
                FindingGroup(path, why, FindingFold.ALWAYS if why == SEARCHED else FindingFold.MANY)
            )
            for path, why in watched
        }
        self._environments: set[str] = set()
        self._seen: set[tuple[str, str, str]] = set()
        self.pending: deque[LinkedDirectory] = deque()
        self.looping: list[ExecutableEntry] = []
        """Links to a directory that contains them: following them would never end."""
        self.crowded = False
        """Whether there were too many links to follow, so that something was not searched."""
        self._left = FOLLOW_SECONDS

    def look(
        self, listing: DirectoryListing, root: str, called: str = ""
    ) -> Iterator[ExecutableEntry]:
        """The entries found in a directory of the tree at `root`; `called` is the name of a link to
        it."""
        where = listing.path
        inside = self._inside.pop(where, None)
        if inside is not None:
            yield from self._everything(listing, inside)
            return
        names = {*listing.files, *listing.dirs, *listing.links}
        if is_git_directory(where, names):
            yield from self._repository(listing)
        if ".git" in listing.files or ".git" in listing.links:
            yield self._found(listing, ".git", POINTER)
        parent = called or os.path.basename(where)
        above = where.removeprefix(root).split("/")
        if parent == NODE_MODULES:
            yield from self._programs(listing, where if called else root)
        if parent in PACKAGES or (above[-1] == "__pycache__" and above[-2:-1] == ["site-packages"]):
            yield from self._packages(listing)
        if not called and (NODE_MODULES in above or not PACKAGES.isdisjoint(above)):
            return
        if is_environment(names):
            yield from self._environment(listing)
        yield from self._by_name(listing, parent, names)

    # ── by name ───────────────────────────────────────────────────────────────────────────────────

    def _by_name(
        self, listing: DirectoryListing, parent: str, names: set[str]
    ) -> Iterator[ExecutableEntry]:
        for name in listing.files:
            found = trigger_of(parent, name) or beside_envrc(name, names)
            if found is not None:
                yield self._found(listing, name, found.why, guard=found.guard)
        for name in listing.dirs:
            found = trigger_of(parent, name, MountKind.DIR)
            if found is not None:
                yield from self._directory(_join(listing.path, name), found)
        for name in listing.links:
            yield from self._link(listing, parent, name, names)

    def _directory(self, path: str, trigger: Trigger) -> Iterator[ExecutableEntry]:
        """A directory that counts as a whole, or entry by entry."""
        self._inside[path] = _inside(path, trigger)
        if trigger.guard is TriggerGuard.READ_ONLY:
            yield ExecutableEntry(path, trigger.why, MountKind.DIR, trigger.guard)

    def _link(
        self, listing: DirectoryListing, parent: str, name: str, names: set[str]
    ) -> Iterator[ExecutableEntry]:
        file, directory = trigger_of(parent, name), trigger_of(parent, name, MountKind.DIR)
        trigger = directory or file or beside_envrc(name, names)
        path = _join(listing.path, name)
        watched = self._inside.get(path)
        if watched is not None:
            found = ExecutableEntry(path, watched.group.why, group=watched.group)
            yield from self._led(found, name, watched)
        elif trigger is not None:
            inside = _inside(path, directory) if directory else None
            yield from self._led(
                ExecutableEntry(path, trigger.why, MountKind.FILE, trigger.guard), name, inside
            )
        elif names_a_place(name):
            led = list(self._led(ExecutableEntry(path, PLACE), name))
            # A link of an unknown name is ignored if it leads to a file, or out of the trees.
            yield from (each for each in led if each.kind is MountKind.DIR or is_known_place(name))

    # ── by place ──────────────────────────────────────────────────────────────────────────────────

    def _everything(self, listing: DirectoryListing, inside: _Inside) -> Iterator[ExecutableEntry]:
        """The whole content of a directory that the host acts on."""
        where, group = listing.path, inside.group
        guard = TriggerGuard.REPORTED if inside.covered else inside.guard
        below = _Inside(group, inside.guard, inside.covered or guard is TriggerGuard.READ_ONLY)
        for name in listing.files:
            if group.why != REPOSITORY or not name.endswith(".sample"):
                yield self._found(listing, name, group.why, group, guard)
        for name in listing.links:
            found = ExecutableEntry(
                _join(where, name), group.why, MountKind.FILE, inside.guard, group
            )
            # A directory that is only linked to may be any directory of the project, in which
            # people and agents work. It is read-only only if its name means that it holds programs.
            directory = inside.guard if holds_programs(name) else TriggerGuard.REPORTED
            inner = _Inside(group, inside.guard, covered=True)
            yield from self._led(found, name, inner, directory)
        for name in listing.dirs:
            path = _join(where, name)
            if guard is TriggerGuard.READ_ONLY and name in CHECKOUTS:
                continue
            if guard is TriggerGuard.READ_ONLY and (name in OWN_WORK or name == NODE_MODULES):
                fold = FindingFold.ALWAYS if name == NODE_MODULES else FindingFold.MANY
                self._inside[path] = _Inside(FindingGroup(path, group.why, fold))
                continue
            self._inside[path] = below
            if guard is TriggerGuard.READ_ONLY:
                yield ExecutableEntry(path, group.why, MountKind.DIR, guard)

    def _repository(self, listing: DirectoryListing) -> Iterator[ExecutableEntry]:
        where = listing.path
        group = FindingGroup(where, REPOSITORY, FindingFold.NEW)
        yield ExecutableEntry(where, REPOSITORY, MountKind.DIR, group=group)
        for name in (*GIT_CONFIGS, *GIT_POINTERS):
            if name in listing.files or name in listing.links:
                yield self._found(listing, name, REPOSITORY, group)
        for name in (GIT_HOOKS_DIR, *GIT_UNFINISHED):
            path = _join(where, name)
            own = group if name == GIT_HOOKS_DIR else FindingGroup(path, UNFINISHED)
            # `repositories.py` makes existing hooks read-only as a whole.
            inside = _Inside(
                own, TriggerGuard.READ_ONLY if own is group else TriggerGuard.REPORTED, covered=True
            )
            if name in listing.dirs:
                self._inside[path] = inside
            elif name in listing.links or name in listing.files:
                yield from self._led(ExecutableEntry(path, own.why, group=own), name, inside)

    def _environment(self, listing: DirectoryListing) -> Iterator[ExecutableEntry]:
        """An environment is one finding, whichever of its programs changed."""
        where = listing.path
        self._environments.add(where)
        group = FindingGroup(where, ENVIRONMENT, FindingFold.ALWAYS)
        for name in ("pyvenv.cfg", "bin"):
            path = _join(where, name)
            if name in listing.files or name in listing.links:
                yield from self._led(
                    ExecutableEntry(path, ENVIRONMENT, group=group), name, _Inside(group)
                )
            elif name in listing.dirs:
                self._inside[path] = _Inside(group)

    def _packages(self, listing: DirectoryListing) -> Iterator[ExecutableEntry]:
        where = listing.path
        owner = next((p for p in parents(where) if p in self._environments), where)
        group = FindingGroup(owner, ENVIRONMENT, FindingFold.ALWAYS)
        for name in (*listing.files, *listing.links):
            if runs_at_start(name):
                yield from self._led(
                    ExecutableEntry(_join(where, name), ENVIRONMENT, group=group), name
                )
        for name in listing.dirs:
            if runs_at_start(name):
                self._inside[_join(where, name)] = _Inside(group)

    def _programs(self, listing: DirectoryListing, root: str) -> Iterator[ExecutableEntry]:
        """`node_modules/.bin`; those of nested packages are reported with the outermost."""
        outer, found, _ = listing.path.removeprefix(root).partition(f"/{NODE_MODULES}")
        top = f"{root.rstrip('/')}{outer}{found}" if found else listing.path
        group = FindingGroup(_join(top, NODE_PROGRAMS), PROGRAMS, FindingFold.ALWAYS)
        path = _join(listing.path, NODE_PROGRAMS)
        if NODE_PROGRAMS in listing.dirs:
            self._inside[path] = _Inside(group)
        elif NODE_PROGRAMS in listing.links:
            yield from self._led(
                ExecutableEntry(path, PROGRAMS, group=group), NODE_PROGRAMS, _Inside(group)
            )

    # ── links ─────────────────────────────────────────────────────────────────────────────────────

    def _found(
        self,
        listing: DirectoryListing,
        name: str,
        why: str,
        group: FindingGroup | None = None,
        guard: TriggerGuard = TriggerGuard.REPORTED,
    ) -> ExecutableEntry:
        path = _join(listing.path, name)
        trail = (self._trail(path) or _NOWHERE) if name in listing.links else None
        return ExecutableEntry(path, why, MountKind.FILE, guard, group, trail)

    def _led(
        self,
        found: ExecutableEntry,
        name: str,
        inside: _Inside | None = None,
        directory: TriggerGuard | None = None,
    ) -> Iterator[ExecutableEntry]:
        """The same with the link's target. If that is a directory, it is searched under this name,
        and guarded by `directory` if that is given."""
        trail = self._trail(found.path)
        if trail is None or not trail.links:
            yield found if trail is not None else replace(found, trail=_NOWHERE)
            return
        end = trail.end
        inside_trees = any(is_within(end, root) for root in self._roots)
        is_directory = inside_trees and os.path.isdir(end)
        guard = directory if is_directory and directory else found.guard
        kind = MountKind.DIR if is_directory else MountKind.FILE
        led = ExecutableEntry(found.path, found.why, kind, guard, found.group, trail)
        yield led
        if not is_directory:
            return
        if is_within(found.path, end):
            self.looping.append(led)
            return
        detour = LinkedDirectory(end, name, found.path, inside)
        way = (detour.path, detour.name, detour.link)
        if way in self._seen:
            return
        if len(self._seen) >= MAX_DETOURS:
            self.crowded = True
            return
        self._seen.add(way)
        self.pending.append(detour)

    def _trail(self, path: str) -> Trail | None:
        """The way to a path's target; None if no program could follow it, or time is up."""
        if self._left < 0:
            self.crowded = True
            return None
        started = time.monotonic()
        try:
            return follow(path)
        except LinkInPath:
            return None
        finally:
            self._left -= time.monotonic() - started

    def enter(self, detour: LinkedDirectory) -> None:
        """The next walk is over this directory, under the link's name."""
        if detour.inside is not None:
            self._inside[detour.path] = detour.inside

    def visit_hooks(self, path: str) -> None:
        """Look through a directory of git hooks that a config names, which is read-only."""
        inside = _Inside(FindingGroup(path, REPOSITORY), TriggerGuard.READ_ONLY, covered=True)
        self.pending.append(LinkedDirectory(path, GIT_HOOKS_DIR, path, inside))


def _inside(path: str, trigger: Trigger) -> _Inside:
    whole = trigger.guard is TriggerGuard.READ_ONLY
    guard = (
        TriggerGuard.REPORTED if trigger.guard is TriggerGuard.REPORTED else TriggerGuard.READ_ONLY
    )
    fold = FindingFold.ALWAYS if trigger.guard is TriggerGuard.REPORTED else FindingFold.MANY
    return _Inside(FindingGroup(path, trigger.why, fold), guard, covered=whole)


def _join(where: str, name: str) -> str:
    return f"{where.rstrip('/')}/{name}"
