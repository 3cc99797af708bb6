"""New commits of a push beside their parents: which touch a denied path, which are sound.

Used by `policy/trial.py`, which asks upstream for what is missing here. A commit must leave every
denied path as it is in one of its parents, and two kinds of parent do not count:

- one that is not *rooted*, where another one is: neither trusted nor a follower of what is. Else a
  first commit of one's own, which has no denied file, would be a parent to take that from;
- one that another parent already follows. Else a merge of a branch with what the branch was long
  ago would bring back a workflow that was repaired since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.policy.deniedpaths import Compared, DeniedPaths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.glob import Glob
    from keyhole.policy.ancestry import Ancestry, Way
    from keyhole.policy.pushedobjects import Objects


@dataclass(frozen=True, slots=True)
class Doubt:
    """A parent of a merge which others may follow, and where their known history ends."""

    sought: bytes
    others: tuple[bytes, ...]
    ends: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _Settled:
    """What was found of a commit, and the parents for which that holds."""

    parents: tuple[bytes, ...]
    denied_path: str | None


class NewCommits:
    """What is known of each new commit of one trial."""

    def __init__(self, globs: tuple[Glob, ...], known: Objects, ancestry: Ancestry) -> None:
        self._denied = DeniedPaths(globs, known.tree, known.is_file) if globs else None
        self._known = known
        self._ancestry = ancestry
        self._settled: dict[bytes, _Settled] = {}
        self._missing: dict[bytes, frozenset[bytes]] = {}
        """Of what is not settled: commits or trees that have to be seen for it,"""
        self._files: dict[bytes, frozenset[bytes]] = {}
        """objects that have to be shown to be files,"""
        self._doubts: dict[bytes, Doubt] = {}
        """or which of a merge's parents is the older one."""
        self._apart: set[tuple[bytes, bytes]] = set()
        """Two commits of which upstream said that the first does not follow the second."""
        self._closed: set[tuple[bytes, tuple[bytes, ...]]] = set()
        """Doubts that were put to it."""

    def touched(self, oid: bytes) -> str | None:
        """The denied path that a commit changes, as far as is known."""
        settled = self._settled.get(oid)
        return None if settled is None else settled.denied_path

    def unsettled(self, way: Way) -> bytes | None:
        """A commit that is not known to be sound, nor not to be."""
        if self._denied is None:
            return None
        return next((oid for oid in way.new if oid not in self._settled), None)

    def is_disordered(self, oid: bytes) -> bool:
        """Whether it is not settled because the order of its parents is not known."""
        return oid in self._doubts

    def missing(self, way: Way) -> Iterable[bytes]:
        """Commits and trees that have to be seen of upstream's."""
        return dict.fromkeys(oid for new in way.new for oid in self._missing.get(new, ()))

    def files(self, way: Way) -> Iterable[bytes]:
        """The same of files. A file may be long, and a tree may show it in a parent; so files are
        asked for when no tree is missing."""
        return dict.fromkeys(oid for new in way.new for oid in self._files.get(new, ()))

    def doubt(self, way: Way) -> Doubt | None:
        """One that was not put to upstream yet, of the oldest merge that has one."""
        for oid in reversed(way.new):
            doubt = self._doubts.get(oid)
            if doubt is not None and not self._is_closed(doubt):
                return doubt
        return None

    def close(self, doubt: Doubt, *, answered: bool) -> None:
        """Upstream was asked for the history from those ends to the sought commit.

        The commit that directly follows the sought one is not reached from it, so it would be in
        the answer: who does not meet it now, never does.
        """
        self._closed.add((doubt.sought, doubt.ends))
        if answered:
            self._apart.update(
                (other, doubt.sought)
                for other in doubt.others
                if self._ancestry.ends(other, doubt.sought) is not None
            )

    def compare(self, way: Way) -> None:
        """Lay the denied paths over each new commit, as far as that is possible by now."""
        if self._denied is None:
            return
        rooted = self._ancestry.rooted(way)
        for oid, commit in way.new.items():
            counted = [parent for parent in commit.parents if parent in rooted]
            # Where none is, all are new and shown; they have no denied path, or are refused.
            parents = tuple(dict.fromkeys(counted or commit.parents))
            settled = self._settled.get(oid)
            if settled is not None and settled.parents == parents:
                continue
            for kept in (self._settled, self._missing, self._files, self._doubts):
                kept.pop(oid, None)
            seen = [self._known.commit(parent) for parent in parents]
            trees = {p: c.tree for p, c in zip(parents, seen, strict=True) if c is not None}
            if len(trees) < len(parents):
                self._missing[oid] = frozenset(parents) - trees.keys()
                continue
            found = self._judge(self._denied, commit.tree, trees, merges=len(counted) > 1)
            if isinstance(found, Doubt):
                self._doubts[oid] = found
            elif found.missing:
                self._missing[oid] = found.missing
            elif found.files:
                self._files[oid] = found.files
            else:
                self._settled[oid] = _Settled(parents, found.denied_path)

    def _judge(
        self, denied: DeniedPaths, tree: bytes, trees: dict[bytes, bytes], *, merges: bool
    ) -> Compared | Doubt:
        """A commit's tree beside those of its parents, which for a merge may not all count."""
        found = denied.compare(tree, tuple(trees.values()), prove_files=True)
        if not merges or not found.is_clean:
            return found
        # Most merges have in all denied paths what each of their parents has.
        alone = {parent: denied.compare(tree, (other,)) for parent, other in trees.items()}
        if all(each.is_clean for each in alone.values()):
            return found
        ends = {parent: self._loose_ends(parent, trees) for parent in trees}
        latest = {parent: loose for parent, loose in ends.items() if loose is not None}
        found = denied.compare(tree, tuple(trees[parent] for parent in latest))
        if not found.is_clean:
            return found
        certain = tuple(trees[parent] for parent, loose in latest.items() if not loose)
        if certain:
            found = denied.compare(tree, certain)
            if found.denied_path is None:
                return found
        elif all(alone[parent].denied_path is None for parent in latest):
            # Whether their order matters can still be seen, for all merges of a push at once.
            return Compared(None, frozenset().union(*(alone[p].missing for p in latest)))
        return self._first_doubt(alone, latest)

    def _loose_ends(self, parent: bytes, parents: Iterable[bytes]) -> tuple[bytes, ...] | None:
        """From where other parents may reach one; None if one is known to."""
        loose: dict[bytes, None] = {}
        for other in parents:
            if other == parent or (other, parent) in self._apart:
                continue
            ends = self._ancestry.loose_ends(other, parent)
            if ends is None:
                return None
            loose |= dict.fromkeys(ends)
        return tuple(loose)

    def _first_doubt(
        self, alone: dict[bytes, Compared], latest: dict[bytes, tuple[bytes, ...]]
    ) -> Doubt:
        """The one to be asked about next: rather a parent by which all is settled, if it counts."""
        doubts = [
            Doubt(parent, tuple(other for other in latest if other != parent), latest[parent])
            for parent in sorted(latest, key=lambda p: alone[p].denied_path is not None)
            if latest[parent]
        ]
        return next((each for each in doubts if not self._is_closed(each)), doubts[0])

    def _is_closed(self, doubt: Doubt) -> bool:
        return (doubt.sought, doubt.ends) in self._closed
