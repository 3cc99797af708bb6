"""Finds in a tree what the host may execute later, one directory after another (I11).

`inspection.py` makes of it what is read-only inside, `comparison.py` what is reported: the same
rules for both. A link counts as the thing that it leads to. A link to a directory makes that
directory count under the link's name, and it is looked through once more for that (`pending`).
"""

from __future__ import annotations

import enum
import os
import time
from collections import deque
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, field, replace
from keyhole.sandbox.files.fileplan import Kind
from keyhole.sandbox.files.links import TooManyLinks, Trail, follow
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
    Guard,
    Trigger,
    beside_envrc,
    holds_programs,
    is_environment,
    is_git_directory,
    is_known_place,
    names_a_place,
    runs_at_start,
    trigger_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.sandbox.files.survey import Listing

MAX_DETOURS = 1000
"""Links to directories that are looked through under the link's name; a project has a dozen."""
FOLLOW_SECONDS = 4.0
"""Time that following links may take in one look; ten thousand take a tenth of a second."""


_NOWHERE = Trail("", (), ())


class Fold(enum.Enum):
    """When changes in one directory are told in one line."""

    MANY = enum.auto()
    """When there are more than a few."""
    NEW = enum.auto()
    """When all of it is new."""
    ALWAYS = enum.auto()


@dataclass(frozen=True, slots=True)
class Group:
    """Things that belong together in a report."""

    path: str
    why: str
    fold: Fold = Fold.MANY


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that the host may execute."""

    path: str
    why: str
    kind: Kind = Kind.FILE
    guard: Guard = Guard.REPORTED
    group: Group | None = None
    trail: Trail | None = None
    """Where it leads, if it is a link."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """What is known of a directory all of whose content counts."""

    group: Group
    guard: Guard = Guard.REPORTED
    """Of its entries."""
    covered: bool = False
    """It is read-only as a whole already."""


@dataclass(frozen=True, slots=True)
class Detour:
    """A directory to look through under a link's name."""

    path: str
    name: str
    link: str
    inside: _Inside | None = field(compare=False, default=None)


class Finder:
    """Goes along with a walk over the trees in `roots`, parents first."""

    def __init__(self, roots: Iterable[str], watched: Iterable[tuple[str, str]] = ()) -> None:
        self._roots = tuple(roots)
        self._inside: dict[str, _Inside] = {
            path: _Inside(Group(path, why, Fold.ALWAYS if why == SEARCHED else Fold.MANY))
            for path, why in watched
        }
        self._environments: set[str] = set()
        self._seen: set[Detour] = set()
        self.pending: deque[Detour] = deque()
        self.looping: list[Found] = []
        """Links to a directory that they lie in themselves: what is in it has no end."""
        self.crowded = False
        """Whether there were more links than are followed, so that something was not seen."""
        self._left = FOLLOW_SECONDS

    def look(self, listing: Listing, root: str, called: str = "") -> Iterator[Found]:
        """What is in a directory of the tree at `root`; `called` is the name of a link to it."""
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

    def _by_name(self, listing: Listing, parent: str, names: set[str]) -> Iterator[Found]:
        for name in listing.files:
            found = trigger_of(parent, name) or beside_envrc(name, names)
            if found is not None:
                yield self._found(listing, name, found.why, guard=found.guard)
        for name in listing.dirs:
            found = trigger_of(parent, name, Kind.DIR)
            if found is not None:
                yield from self._directory(_join(listing.path, name), found)
        for name in listing.links:
            yield from self._link(listing, parent, name, names)

    def _directory(self, path: str, trigger: Trigger) -> Iterator[Found]:
        """A directory that counts whole, or entry by entry."""
        self._inside[path] = _inside(path, trigger)
        if trigger.guard is Guard.READ_ONLY:
            yield Found(path, trigger.why, Kind.DIR, trigger.guard)

    def _link(self, listing: Listing, parent: str, name: str, names: set[str]) -> Iterator[Found]:
        file, directory = trigger_of(parent, name), trigger_of(parent, name, Kind.DIR)
        trigger = directory or file or beside_envrc(name, names)
        path = _join(listing.path, name)
        watched = self._inside.get(path)
        if watched is not None:
            found = Found(path, watched.group.why, group=watched.group)
            yield from self._led(found, name, watched)
        elif trigger is not None:
            inside = _inside(path, directory) if directory else None
            yield from self._led(Found(path, trigger.why, Kind.FILE, trigger.guard), name, inside)
        elif names_a_place(name):
            led = list(self._led(Found(path, PLACE), name))
            # Of a name that means nothing yet, a link to a file, or out of the trees, says nothing.
            yield from (each for each in led if each.kind is Kind.DIR or is_known_place(name))

    # ── by place ──────────────────────────────────────────────────────────────────────────────────

    def _everything(self, listing: Listing, inside: _Inside) -> Iterator[Found]:
        """All of a directory whose content the host acts on."""
        where, group = listing.path, inside.group
        guard = Guard.REPORTED if inside.covered else inside.guard
        below = _Inside(group, inside.guard, inside.covered or guard is Guard.READ_ONLY)
        for name in listing.files:
            if group.why != REPOSITORY or not name.endswith(".sample"):
                yield self._found(listing, name, group.why, group, guard)
        for name in listing.links:
            found = Found(_join(where, name), group.why, Kind.FILE, inside.guard, group)
            # A directory that is only linked to may be any of the project's, which people and
            # agents work in: it is read-only where its name says that programs are in it.
            directory = inside.guard if holds_programs(name) else Guard.REPORTED
            inner = _Inside(group, inside.guard, covered=True)
            yield from self._led(found, name, inner, directory)
        for name in listing.dirs:
            path = _join(where, name)
            if guard is Guard.READ_ONLY and name in CHECKOUTS:
                continue
            if guard is Guard.READ_ONLY and (name in OWN_WORK or name == NODE_MODULES):
                fold = Fold.ALWAYS if name == NODE_MODULES else Fold.MANY
                self._inside[path] = _Inside(Group(path, group.why, fold))
                continue
            self._inside[path] = below
            if guard is Guard.READ_ONLY:
                yield Found(path, group.why, Kind.DIR, guard)

    def _repository(self, listing: Listing) -> Iterator[Found]:
        where = listing.path
        group = Group(where, REPOSITORY, Fold.NEW)
        yield Found(where, REPOSITORY, Kind.DIR, group=group)
        for name in (*GIT_CONFIGS, *GIT_POINTERS):
            if name in listing.files or name in listing.links:
                yield self._found(listing, name, REPOSITORY, group)
        for name in (GIT_HOOKS_DIR, *GIT_UNFINISHED):
            path = _join(where, name)
            own = group if name == GIT_HOOKS_DIR else Group(path, UNFINISHED)
            # Hooks that are there are read-only as a whole, by `repositories.py`.
            inside = _Inside(own, Guard.READ_ONLY if own is group else Guard.REPORTED, covered=True)
            if name in listing.dirs:
                self._inside[path] = inside
            elif name in listing.links or name in listing.files:
                yield from self._led(Found(path, own.why, group=own), name, inside)

    def _environment(self, listing: Listing) -> Iterator[Found]:
        """An environment is one finding, whatever of its programs changed."""
        where = listing.path
        self._environments.add(where)
        group = Group(where, ENVIRONMENT, Fold.ALWAYS)
        for name in ("pyvenv.cfg", "bin"):
            path = _join(where, name)
            if name in listing.files or name in listing.links:
                yield from self._led(Found(path, ENVIRONMENT, group=group), name, _Inside(group))
            elif name in listing.dirs:
                self._inside[path] = _Inside(group)

    def _packages(self, listing: Listing) -> Iterator[Found]:
        where = listing.path
        owner = next((p for p in parents(where) if p in self._environments), where)
        group = Group(owner, ENVIRONMENT, Fold.ALWAYS)
        for name in (*listing.files, *listing.links):
            if runs_at_start(name):
                yield from self._led(Found(_join(where, name), ENVIRONMENT, group=group), name)
        for name in listing.dirs:
            if runs_at_start(name):
                self._inside[_join(where, name)] = _Inside(group)

    def _programs(self, listing: Listing, root: str) -> Iterator[Found]:
        """`node_modules/.bin`; those of nested packages are told with the outermost."""
        outer, found, _ = listing.path.removeprefix(root).partition(f"/{NODE_MODULES}")
        top = f"{root.rstrip('/')}{outer}{found}" if found else listing.path
        group = Group(_join(top, NODE_PROGRAMS), PROGRAMS, Fold.ALWAYS)
        path = _join(listing.path, NODE_PROGRAMS)
        if NODE_PROGRAMS in listing.dirs:
            self._inside[path] = _Inside(group)
        elif NODE_PROGRAMS in listing.links:
            yield from self._led(Found(path, PROGRAMS, group=group), NODE_PROGRAMS, _Inside(group))

    # ── links ─────────────────────────────────────────────────────────────────────────────────────

    def _found(
        self,
        listing: Listing,
        name: str,
        why: str,
        group: Group | None = None,
        guard: Guard = Guard.REPORTED,
    ) -> Found:
        path = _join(listing.path, name)
        trail = (self._trail(path) or _NOWHERE) if name in listing.links else None
        return Found(path, why, Kind.FILE, guard, group, trail)

    def _led(
        self,
        found: Found,
        name: str,
        inside: _Inside | None = None,
        directory: Guard | None = None,
    ) -> Iterator[Found]:
        """The same with where it leads; a directory is looked through under this name, and guarded
        by `directory` if that is given."""
        trail = self._trail(found.path)
        if trail is None or not trail.links:
            yield found if trail is not None else replace(found, trail=_NOWHERE)
            return
        end = trail.end
        inside_trees = any(is_within(end, root) for root in self._roots)
        is_directory = inside_trees and os.path.isdir(end)
        guard = directory if is_directory and directory else found.guard
        kind = Kind.DIR if is_directory else Kind.FILE
        led = Found(found.path, found.why, kind, guard, found.group, trail)
        yield led
        if not is_directory:
            return
        if is_within(found.path, end):
            self.looping.append(led)
            return
        detour = Detour(end, name, found.path, inside)
        if detour in self._seen:
            return
        if len(self._seen) >= MAX_DETOURS:
            self.crowded = True
            return
        self._seen.add(detour)
        self.pending.append(detour)

    def _trail(self, path: str) -> Trail | None:
        """Where a path leads; None if no program could follow it, or time is up."""
        if self._left < 0:
            self.crowded = True
            return None
        started = time.monotonic()
        try:
            return follow(path)
        except TooManyLinks:
            return None
        finally:
            self._left -= time.monotonic() - started

    def enter(self, detour: Detour) -> None:
        """The next walk is over this directory, under the link's name."""
        if detour.inside is not None:
            self._inside[detour.path] = detour.inside

    def visit_hooks(self, path: str) -> None:
        """Look through a directory of git hooks that a config names, which is read-only."""
        inside = _Inside(Group(path, REPOSITORY), Guard.READ_ONLY, covered=True)
        self.pending.append(Detour(path, GIT_HOOKS_DIR, path, inside))


def _inside(path: str, trigger: Trigger) -> _Inside:
    whole = trigger.guard is Guard.READ_ONLY
    guard = Guard.REPORTED if trigger.guard is Guard.REPORTED else Guard.READ_ONLY
    fold = Fold.ALWAYS if trigger.guard is Guard.REPORTED else Fold.MANY
    return _Inside(Group(path, trigger.why, fold), guard, covered=whole)


def _join(where: str, name: str) -> str:
    return f"{where.rstrip('/')}/{name}"
