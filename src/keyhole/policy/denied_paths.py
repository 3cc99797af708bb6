"""Finds changes to denied files: `deny_paths` applied to the trees of a commit and its parents.

Called by `policy/new_commits.py`, which chooses the parents that count. A denied file must have the
mode and oid that it has in one of them. So a merge may choose between its parents, and a first
commit may have no denied file. Trees are compared only where they differ. Globs match names as a
checkout that folds case would, while two trees are compared by exact names: `.GitHub` beside
`.github` is an additional entry. An entry in the position of a directory that leads to a denied
path must be shown to be a file: its mode is only a claim of the pushing client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed, Unparsable
from keyhole.model.glob import ANY_DEPTH, fold, segment_matches
from keyhole.model.text import check_marks
from keyhole.wire.git_object import GITLINK_MODE, SYMLINK_MODE, TREE_MODE, ObjectKind, kind_of_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.model.glob import Glob
    from keyhole.wire.git_object import TreeEntry

MAX_DEPTH = 512
"""Depth of nested directories; paths of real systems end long before."""

MAX_COMPARED = 20_000_000
"""Entries looked at in one trial, some 20 s: with `**` in front, the trees of 50,000 commits."""

_MAX_REMEMBERED = 4096
"""Trees whose entries of interest are remembered (each is looked at as a child and as a parent),
and names at each position."""

_DETOURS = frozenset((SYMLINK_MODE, GITLINK_MODE))

_Position = tuple[int, int]
_Selected = dict[bytes, tuple[bytes, bytes, "GlobPosition"]]


class GlobPosition:
    """How far the globs have matched along one path. There are few positions: one for each way of
    matching."""

    __slots__ = ("denied", "guarded", "literals", "positions", "steps")

    def __init__(self, globs: tuple[tuple[str, ...], ...], positions: frozenset[_Position]) -> None:
        self.positions = positions
        self.denied = any(at == len(globs[index]) for index, at in positions)
        """Whether everything here and below is denied."""
        self.guarded = any(
            any(segment != ANY_DEPTH for segment in globs[index][:at]) for index, at in positions
        )
        """Whether a directory here leads to a denied path, so that no link may take its place.
        (With `**` in front this would hold for every directory; there, the target of a link is
        matched itself.)"""
        here = [globs[index][at] for index, at in positions if not self.denied]
        wild = any("*" in segment for segment in here)
        self.literals = None if wild or self.denied else frozenset(s.encode() for s in here)
        """The only names that can still match from here; None if others can."""
        self.steps: dict[bytes, GlobPosition | None] = {}
        """Names that were met here, and the position after each."""


class CommitComparison(Struct, frozen=True):
    """The comparison of a commit with its parents: the first denied path that it changes, or the
    objects that are missing to know."""

    denied_path: str | None
    missing: frozenset[bytes] = frozenset()
    """Trees."""
    files: frozenset[bytes] = frozenset()
    """Objects that an entry claims are files, and that were not shown to be."""

    @property
    def is_clean(self) -> bool:
        """Whether no denied path is changed, and that is certain."""
        return self.denied_path is None and not self.missing and not self.files


class _Step(Struct, frozen=True):
    """One directory, in the commit and in each of its parents; None where it does not exist."""

    path: tuple[bytes, ...]
    place: GlobPosition
    child: bytes | None
    parents: tuple[bytes | None, ...]


class DeniedPaths:
    """The globs of one trial, and the trees that were already read with them."""

    def __init__(
        self,
        globs: tuple[Glob, ...],
        tree: Callable[[bytes], list[TreeEntry] | None],
        is_file: Callable[[bytes], bool],
    ) -> None:
        """`tree` and `is_file` are those of `PushedObjects`."""
        self._globs = tuple(glob.folded().segments for glob in globs)
        self._tree = tree
        self._is_file = is_file
        self._places: dict[frozenset[_Position], GlobPosition] = {}
        self._start = self._at((index, 0) for index in range(len(globs)))
        self._selected: dict[tuple[bytes, GlobPosition], _Selected] = {}
        self._compared = 0

    def compare(
        self, child: bytes, parents: tuple[bytes, ...], *, prove_files: bool = False
    ) -> CommitComparison:
        """Compare a commit's tree with those of its parents."""
        if child in parents:
            return CommitComparison(None)
        missing: set[bytes] = set()
        files: set[bytes] = set()
        settled: list[_Selected] = []
        steps = [_Step((), self._start, child, parents)]
        seen: set[tuple[GlobPosition, bytes | None, tuple[bytes | None, ...]]] = set()
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
                    return CommitComparison(_words(path))
                if prove_files and found[0] and _is_said_to_be_file(found[0]):
                    files.add(found[0][1])
                below, *others = (e[1] if e and e[0] == TREE_MODE else None for e in found)
                key = (place, below, tuple(others))
                # A tree that is equal in one parent is equal in all its content. And a tree that
                # occurs again, with the same parents, was compared already: otherwise ten levels of
                # ten entries that name one tree would be ten thousand million paths.
                if below not in others and (others or below) and key not in seen:
                    if len(path) > MAX_DEPTH:
                        raise Malformed(f"directories are more than {MAX_DEPTH} deep")
                    seen.add(key)
                    steps.append(_Step(path, place, below, key[2]))
        return CommitComparison(None, frozenset(missing), self._unproven(files, settled))

    def _unproven(self, files: set[bytes], settled: list[_Selected]) -> frozenset[bytes]:
        """Which of these are not known to be files.

        A file in a parent is one: there it is trusted, or was judged itself.
        """
        if files:
            known = (e[1] for tree in settled for e in tree.values() if _is_said_to_be_file(e))
            files.difference_update(known)
        return frozenset(oid for oid in files if not self._is_file(oid))

    def _select(
        self, oid: bytes | None, place: GlobPosition, missing: set[bytes]
    ) -> _Selected | None:
        """The entries of a tree that matter at a position; None if the tree is not known, which is
        noted."""
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

    def _step(self, place: GlobPosition, name: bytes) -> GlobPosition | None:
        """The position after this name, if it can still match."""
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

    def _at(self, positions: Iterable[_Position]) -> GlobPosition:
        """The position for these places, and for those behind a `**` that matches nothing."""
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
            known = self._places[key] = GlobPosition(self._globs, key)
        return known

    def _count(self, amount: int) -> None:
        self._compared += amount
        if self._compared > MAX_COMPARED:
            raise Malformed("the trees of a pack take too long to compare")


def _differing(child: _Selected, *parents: _Selected) -> set[bytes]:
    """Names whose entry in the child, present or absent, is the same in no parent."""
    if not parents:
        return set(child)
    each = ({name for name, _ in child.items() ^ parent.items()} for parent in parents)
    return set.intersection(*each)


def _leaf(
    entry: tuple[bytes, bytes, GlobPosition] | None, place: GlobPosition
) -> tuple[bytes, bytes] | None:
    """The part of an entry that counts by itself: a denied file, or a link in place of a guarded
    directory."""
    if entry is None or entry[0] == TREE_MODE:
        return None
    if place.denied or (place.guarded and entry[0] in _DETOURS):
        return entry[:2]
    return None


def _is_said_to_be_file(entry: tuple[bytes, bytes, GlobPosition]) -> bool:
    return kind_of_mode(entry[0]) is ObjectKind.BLOB


def _words(path: tuple[bytes, ...]) -> str:
    """A path for people, with control characters escaped: a pusher chose the name."""
    text = b"/".join(path[:_MAX_SHOWN]).decode("utf-8", "replace")
    return "".join(c if " " <= c <= "~" else "?" for c in text[:_MAX_SHOWN])


_MAX_SHOWN = 200
"""Characters of a path that are shown."""
