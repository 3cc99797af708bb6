"""The graph of commits: which are trusted, what they follow, and whether one reaches another.

Used by `policy/push_trial.py` and `new_commits.py`. It knows only the commits shown so far and
requests nothing; a path ends at a commit that was not shown. It uses loops, never recursion: the
pushing client chooses how deep a history is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.wire.git_object import Commit

MAX_FOLLOWED = 10_000_000
"""Commits visited in one trial to put the parents of merges in order, some 10 s."""


class CommitPath(Struct, frozen=True):
    """The commits between some commits and the trusted ones."""

    new: dict[bytes, Commit]
    """Commits that are shown and not trusted, roughly the newest first."""
    border: list[bytes]
    """Commits behind them that are neither shown nor trusted."""
    floor: list[bytes]
    """Trusted commits behind them."""


class Ancestry:
    """The known commits, from the trusted tips."""

    def __init__(self, commit: Callable[[bytes], Commit | None], tips: Iterable[bytes]) -> None:
        self._commit = commit
        self._trusted = set(tips)
        self._edge = set(self._trusted)
        """Trusted commits that were not shown yet, so that their parents are not known."""
        self._followed = 0
        self.spread()

    def trusts(self, oid: bytes) -> bool:
        """Whether a tip is known to reach a commit."""
        return oid in self._trusted

    def spread(self) -> None:
        """Trust all that trusted commits follow. Called when more commits were shown."""
        stack, self._edge = list(self._edge), set()
        while stack:
            oid = stack.pop()
            commit = self._commit(oid)
            if commit is None:
                self._edge.add(oid)
                continue
            fresh = [parent for parent in commit.parents if parent not in self._trusted]
            self._trusted.update(fresh)
            stack += fresh

    def walk(self, starts: Iterable[bytes]) -> CommitPath:
        """The path from some commits to the trusted ones."""
        way = CommitPath({}, [], [])
        queue = list(dict.fromkeys(starts))
        seen = set(queue)
        for oid in queue:  # it grows meanwhile
            if oid in self._trusted:
                way.floor.append(oid)
                continue
            commit = self._commit(oid)
            if commit is None:
                way.border.append(oid)
                continue
            way.new[oid] = commit
            fresh = [parent for parent in dict.fromkeys(commit.parents) if parent not in seen]
            seen.update(fresh)
            queue += fresh
        return way

    def rooted(self, way: CommitPath) -> set[bytes]:
        """The part of a path that follows a trusted commit, and those commits themselves.

        A commit at the border counts as trusted: nothing is proven until it is known.
        """
        followers: dict[bytes, list[bytes]] = {}
        for oid, commit in way.new.items():
            for parent in commit.parents:
                followers.setdefault(parent, []).append(oid)
        stack = way.floor + way.border
        rooted = set(stack)
        while stack:
            fresh = [oid for oid in followers.get(stack.pop(), ()) if oid not in rooted]
            rooted.update(fresh)
            stack += fresh
        return rooted

    def ends(self, start: bytes, sought: bytes) -> list[bytes] | None:
        """The ends of the known history of a commit; None if the sought commit is in it."""
        seen, ends = self._behind(start, sought)
        return None if sought in seen else ends

    def loose_ends(self, start: bytes, sought: bytes) -> list[bytes] | None:
        """The same without the ends that the sought commit itself is known to follow.

        They cannot lead to it, since no commit is its own ancestor. If no other end is left, the
        sought commit is not reached, and upstream need not be asked.
        """
        seen, ends = self._behind(start, sought)
        before, _ = self._behind(sought)
        self._followed += len(seen) + len(before)
        if self._followed > MAX_FOLLOWED:
            raise Malformed("the merges of a pack take too long to put in order")
        return None if sought in seen else [oid for oid in ends if oid not in before]

    def _behind(self, start: bytes, sought: bytes | None = None) -> tuple[set[bytes], list[bytes]]:
        """All commits that a commit is known to follow, and the ends; the search stops at the
        sought one."""
        queue, ends = [start], []
        seen = {start}
        for oid in queue:  # it grows meanwhile
            if oid == sought:
                break
            commit = self._commit(oid)
            if commit is None:
                ends.append(oid)
                continue
            fresh = [parent for parent in dict.fromkeys(commit.parents) if parent not in seen]
            seen.update(fresh)
            queue += fresh
        return seen, ends
