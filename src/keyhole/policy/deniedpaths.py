"""Which files a commit may not touch: `deny_paths` laid over trees (DESIGN §4).

Called by `policy/newcommits.py`, which says what parents count. A denied file must be, by mode and
oid, what it is in one of these; so a merge may choose between them, and a first commit has none.
Trees are compared only where they differ. Names are compared as a checkout that folds case would,
while two trees are matched by exact names: `.GitHub` beside `.github` is one more. A file that
stands where a directory would lead to a denied path must be shown to be a file: an entry's mode is
a claim of whoever pushes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.errors import Unparsable
from keyhole.model.glob import ANY_DEPTH, fold, segment_matches
from keyhole.model.text import check_marks
from keyhole.model.value import dataclass
from keyhole.wire.gitobject import GITLINK_MODE, SYMLINK_MODE, TREE_MODE, Kind, kind_of_mode
from keyhole.wire.httpfield import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.model.glob import Glob
    from keyhole.wire.gitobject import Entry

MAX_DEPTH = 512
"""Directories in one another; paths of systems end long before."""

MAX_COMPARED = 20_000_000
"""Entries looked at in one trial, some 20 s: with `**` in front, the trees of 50,000 commits."""

_MAX_REMEMBERED = 4096
"""Trees whose entries of interest are remembered (each is looked at as a child and as a parent),
and names at each place."""

_DETOURS = frozenset((SYMLINK_MODE, GITLINK_MODE))

_Position = tuple[int, int]
_Selected = dict[bytes, tuple[bytes, bytes, "Place"]]


class Place:
    """How far the globs have come along one path. Places are few: one for each way of matching."""

    __slots__ = ("denied", "guarded", "literals", "positions", "steps")

    def __init__(self, globs: tuple[tuple[str, ...], ...], positions: frozenset[_Position]) -> None:
        self.positions = positions
        self.denied = any(at == len(globs[index]) for index, at in positions)
        """Whatever is here, or below, is denied."""
        self.guarded = any(
            any(segment != ANY_DEPTH for segment in globs[index][:at]) for index, at in positions
        )
        """A directory here leads to what is denied, so no link may take its place. (With `**` in
        front every directory would be one; there, what a link leads to is matched itself.)"""
        here = [globs[index][at] for index, at in positions if not self.denied]
        wild = any("*" in segment for segment in here)
        self.literals = None if wild or self.denied else frozenset(s.encode() for s in here)
        """The only names that go on from here; None where others may."""
        self.steps: dict[bytes, Place | None] = {}
        """Names that were met here, and where they lead."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A commit beside its parents: the first denied path that it changes, or what is missing."""

    denied_path: str | None
    missing: frozenset[bytes] = frozenset()
    """Trees."""
    files: frozenset[bytes] = frozenset()
    """Objects that an entry says are files, and that were not shown to be."""

    @property
    def is_clean(self) -> bool:
        """Whether no denied path is changed, and that is certain."""
        return self.denied_path is None and not self.missing and not self.files


@dataclass(frozen=True, slots=True)
class _Step:
    """One directory, in the commit and in each of its parents; None where there is none."""

    path: tuple[bytes, ...]
    place: Place
    child: bytes | None
    parents: tuple[bytes | None, ...]


class DeniedPaths:
    """The globs of one trial, and what was learnt of trees by them."""

    def __init__(
        self,
        globs: tuple[Glob, ...],
        tree: Callable[[bytes], list[Entry] | None],
        is_file: Callable[[bytes], bool],
    ) -> None:
        """`tree` and `is_file` are those of `Objects`."""
        self._globs = tuple(glob.folded().segments for glob in globs)
        self._tree = tree
        self._is_file = is_file
        self._places: dict[frozenset[_Position], Place] = {}
        self._start = self._at((index, 0) for index in range(len(globs)))
        self._selected: dict[tuple[bytes, Place], _Selected] = {}
        self._compared = 0

    def compare(
        self, child: bytes, parents: tuple[bytes, ...], *, prove_files: bool = False
    ) -> Compared:
        """A commit's tree beside those of its parents."""
        if child in parents:
            return Compared(None)
        missing: set[bytes] = set()
        files: set[bytes] = set()
        settled: list[_Selected] = []
        steps = [_Step((), self._start, child, parents)]
        seen: set[tuple[Place, bytes | None, tuple[bytes | None, ...]]] = set()
        while steps:
            step = steps.pop()
            trees = [self._select(oid, step.place, missing) for oid in (step.child, *step.parents)]
            present = [tree for tree in trees if tree is not None]
            if len(present) < len(trees):
                continue
            self._count(sum(map(len, present)))
            settled += present[1:]
            for name in sorted(_differing(*present)):
                found = [tree.get(name) for tree in present]
                place = next(entry[2] for entry in found if entry)
                path = (*step.path, name)
                leaves = [_leaf(entry, place) for entry in found]
                if leaves[0] not in leaves[1:] and (len(leaves) > 1 or leaves[0]):
                    return Compared(_words(path))
                if prove_files and found[0] and _is_said_to_be_file(found[0]):
                    files.add(found[0][1])
                below, *others = (e[1] if e and e[0] == TREE_MODE else None for e in found)
                key = (place, below, tuple(others))
                # Equal in one parent is equal with all that is in it. And whatever is twice in a
                # tree, and in its parents, was looked at already: else ten levels of ten entries
                # that name one tree would be ten thousand million paths.
                if below not in others and (others or below) and key not in seen:
                    if len(path) > MAX_DEPTH:
                        raise Malformed(f"directories are more than {MAX_DEPTH} deep")
                    seen.add(key)
                    steps.append(_Step(path, place, below, key[2]))
        return Compared(None, frozenset(missing), self._unproven(files, settled))

    def _unproven(self, files: set[bytes], settled: list[_Selected]) -> frozenset[bytes]:
        """Which of these are not known to be files.

        What is a file in a parent is one: there it is trusted, or was judged itself.
        """
        if files:
            known = (e[1] for tree in settled for e in tree.values() if _is_said_to_be_file(e))
            files.difference_update(known)
        return frozenset(oid for oid in files if not self._is_file(oid))

    def _select(self, oid: bytes | None, place: Place, missing: set[bytes]) -> _Selected | None:
        """The entries of a tree that matter at a place; None, and noted, where it is not known."""
        if oid is None:
            return {}
        known = self._selected.get((oid, place))
        if known is not None:
            return known
        entries = self._tree(oid)
        if entries is None:
            missing.add(oid)
            return None
        self._count(len(entries))
        literals, selected = place.literals, _Selected()
        for mode, name, entry in entries:
            if literals is None or name.lower() in literals or not name.isascii():
                next_place = self._step(place, name)
                if next_place is not None:
                    selected[name] = (mode, entry, next_place)
        if len(self._selected) >= _MAX_REMEMBERED:
            self._selected.clear()
        self._selected[oid, place] = selected
        return selected

    def _step(self, place: Place, name: bytes) -> Place | None:
        """Where a name leads from a place, if anywhere that matters."""
        if place.denied:
            return place
        if name in place.steps:
            return place.steps[name]
        text = name.decode("utf-8", "surrogateescape")
        try:
            check_marks(text)
        except Unparsable as error:
            raise Malformed(f"a tree has an odd name: {error.message}") from None
        folded = fold(text)
        reached = set()
        for index, at in place.positions:
            segment = self._globs[index][at]
            if segment == ANY_DEPTH:
                reached.add((index, at))
            elif segment_matches(segment, folded):
                reached.add((index, at + 1))
        step = self._at(reached) if reached else None
        if len(place.steps) < _MAX_REMEMBERED:
            place.steps[name] = step
        return step

    def _at(self, positions: Iterable[_Position]) -> Place:
        """The place of these positions, and of those behind a `**` that stands for nothing."""
        found = set()
        for index, position in positions:
            glob, at = self._globs[index], position
            found.add((index, at))
            while at < len(glob) and glob[at] == ANY_DEPTH:
                at += 1
                found.add((index, at))
        key = frozenset(found)
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = Place(self._globs, key)
        return known

    def _count(self, amount: int) -> None:
        self._compared += amount
        if self._compared > MAX_COMPARED:
            raise Malformed("the trees of a pack take too long to compare")


def _differing(child: _Selected, *parents: _Selected) -> set[bytes]:
    """Names of what is in no parent as it is in the child, be it there or not."""
    if not parents:
        return set(child)
    each = ({name for name, _ in child.items() ^ parent.items()} for parent in parents)
    return set.intersection(*each)


def _leaf(entry: tuple[bytes, bytes, Place] | None, place: Place) -> tuple[bytes, bytes] | None:
    """What of an entry counts by itself: a denied file, or a link where a directory is guarded."""
    if entry is None or entry[0] == TREE_MODE:
        return None
    if place.denied or (place.guarded and entry[0] in _DETOURS):
        return entry[:2]
    return None


def _is_said_to_be_file(entry: tuple[bytes, bytes, Place]) -> bool:
    return kind_of_mode(entry[0]) is Kind.BLOB


def _words(path: tuple[bytes, ...]) -> str:
    """A path for people; who chose its name may not write into their terminal."""
    text = b"/".join(path[:_MAX_SHOWN]).decode("utf-8", "replace")
    return "".join(c if " " <= c <= "~" else "?" for c in text[:_MAX_SHOWN])


_MAX_SHOWN = 200
"""Characters of a path that are shown."""
