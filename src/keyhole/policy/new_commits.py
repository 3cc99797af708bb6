"""Compares the new commits of a push with their parents: none may change a denied path.

Used by `policy/push_trial.py`, which asks upstream for missing objects. A commit must leave every
denied path as it is in one of its parents, and two kinds of parent do not count:

- one that is not *rooted* where another one is: neither trusted nor a descendant of a trusted
  commit. Otherwise an attacker's own root commit, which has no denied file, would be a parent to
  match;
- one that is an ancestor of another parent. Otherwise a merge of a branch with an old state of it
  would bring back a workflow that was repaired since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.policy.denied_paths import CommitComparison, DeniedPaths

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.glob import Glob
    from keyhole.policy.ancestry import Ancestry, CommitPath
    from keyhole.policy.pushed_objects import PushedObjects


class UncertainParent(Struct, frozen=True):
    """A parent of a merge that other parents may descend from, and the ends of their known
    history."""

    sought: bytes
    others: tuple[bytes, ...]
    ends: tuple[bytes, ...]


class _CommitResult(Struct, frozen=True):
    """The result for a commit, and the parents for which it holds."""

    parents: tuple[bytes, ...]
    denied_path: str | None


class NewCommits:
    """The facts about each new commit of one trial."""

    def __init__(self, globs: tuple[Glob, ...], known: PushedObjects, ancestry: Ancestry) -> None:
        self._denied = DeniedPaths(globs, known.tree, known.is_file) if globs else None
        self._known = known
        self._ancestry = ancestry
        self._settled: dict[bytes, _CommitResult] = {}
        self._missing: dict[bytes, frozenset[bytes]] = {}
        """For each unsettled commit: commits or trees that are needed,"""
        self._files: dict[bytes, frozenset[bytes]] = {}
        """objects that must be shown to be files,"""
        self._doubts: dict[bytes, UncertainParent] = {}
        """or the question which of a merge's parents is older."""
        self._apart: set[tuple[bytes, bytes]] = set()
        """Pairs of commits for which upstream reported that the first does not descend from the
        second."""
        self._closed: set[tuple[bytes, tuple[bytes, ...]]] = set()
        """Questions that upstream was asked."""

    def touched(self, oid: bytes) -> str | None:
        """The denied path that a commit changes, as far as is known."""
        settled = self._settled.get(oid)
        return None if settled is None else settled.denied_path

    def unsettled(self, way: CommitPath) -> bytes | None:
        """A commit that is known neither to be sound nor not to be."""
        if self._denied is None:
            return None
        return next((oid for oid in way.new if oid not in self._settled), None)

    def is_disordered(self, oid: bytes) -> bool:
        """Whether it is unsettled because the order of its parents is not known."""
        return oid in self._doubts

    def missing(self, way: CommitPath) -> Iterable[bytes]:
        """Commits and trees that upstream must show."""
        return dict.fromkeys(oid for new in way.new for oid in self._missing.get(new, ()))

    def files(self, way: CommitPath) -> Iterable[bytes]:
        """Files that upstream must show. A file may be long, and a tree of a parent may show that
        it is one; so files are requested when no tree is missing."""
        return dict.fromkeys(oid for new in way.new for oid in self._files.get(new, ()))

    def doubt(self, way: CommitPath) -> UncertainParent | None:
        """A question that upstream was not asked yet, of the oldest merge that has one."""
        for oid in reversed(way.new):
            doubt = self._doubts.get(oid)
            if doubt is not None and not self._is_closed(doubt):
                return doubt
        return None

    def close(self, doubt: UncertainParent, *, answered: bool) -> None:
        """Upstream was asked for the history from those ends to the sought commit.

        A child of the sought commit is not reachable from it, so it would be in the response: an
        end that does not meet one now never does.
        """
        self._closed.add((doubt.sought, doubt.ends))
        if answered:
            self._apart.update(
                (other, doubt.sought)
                for other in doubt.others
                if self._ancestry.ends(other, doubt.sought) is not None
            )

    def compare(self, way: CommitPath) -> None:
        """Compare each new commit with its parents, as far as that is possible now."""
        if self._denied is None:
            return
        rooted = self._ancestry.rooted(way)
        for oid, commit in way.new.items():
            counted = [parent for parent in commit.parents if parent in rooted]
            # If no parent is rooted, all are new and shown; they have no denied path, or are
            # refused.
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
            if isinstance(found, UncertainParent):
                self._doubts[oid] = found
            elif found.missing:
                self._missing[oid] = found.missing
            elif found.files:
                self._files[oid] = found.files
            else:
                self._settled[oid] = _CommitResult(parents, found.denied_path)

    def _judge(
        self, denied: DeniedPaths, tree: bytes, trees: dict[bytes, bytes], *, merges: bool
    ) -> CommitComparison | UncertainParent:
        """Compare a commit's tree with those of its parents; of a merge's, not all may count."""
        found = denied.compare(tree, tuple(trees.values()), prove_files=True)
        if not merges or not found.is_clean:
            return found
        # Most merges have the same denied paths as each of their parents.
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
            # Later objects may show that their order does not matter, for all merges of a push at
            # once.
            return CommitComparison(None, frozenset().union(*(alone[p].missing for p in latest)))
        return self._first_doubt(alone, latest)

    def _loose_ends(self, parent: bytes, parents: Iterable[bytes]) -> tuple[bytes, ...] | None:
        """The commits from which other parents may reach one; None if one is known to."""
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
        self, alone: dict[bytes, CommitComparison], latest: dict[bytes, tuple[bytes, ...]]
    ) -> UncertainParent:
        """The parent to ask about next: preferably one whose answer settles everything."""
        doubts = [
            UncertainParent(
                parent, tuple(other for other in latest if other != parent), latest[parent]
            )
            for parent in sorted(latest, key=lambda p: alone[p].denied_path is not None)
            if latest[parent]
        ]
        return next((each for each in doubts if not self._is_closed(each)), doubts[0])

    def _is_closed(self, doubt: UncertainParent) -> bool:
        return (doubt.sought, doubt.ends) in self._closed
