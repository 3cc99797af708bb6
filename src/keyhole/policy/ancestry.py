"""Commits as a graph: which are trusted, what lies before them, and whether one reaches another.

Used by `policy/trial.py` and `newcommits.py`. Knows only what was shown so far, and asks nobody; a
commit that was not shown is where a way ends. Loops, never recursion: a history is as deep as
whoever pushes likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.wire.httpfield import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.wire.gitobject import Commit

MAX_FOLLOWED = 10_000_000
"""Commits passed in one trial to put the parents of merges in order, some 10 s."""


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between some commits and the trusted ones."""

    new: dict[bytes, Commit]
    """Commits that are shown and not trusted, roughly the newest first."""
    border: list[bytes]
    """Commits behind them that are neither."""
    floor: list[bytes]
    """Trusted ones behind them."""


class Ancestry:
    """What is known of commits, from tips that are trusted."""

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
        """Trust whatever a trusted commit follows; to be called when more was shown."""
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

    def walk(self, starts: Iterable[bytes]) -> Way:
        """The way from some commits to the trusted ones."""
        way = Way({}, [], [])
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

    def rooted(self, way: Way) -> set[bytes]:
        """What of a way follows a trusted commit, and those commits themselves.

        What is at its border counts as if it were trusted: until that is known, nothing is proven.
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
        """Where the known history of a commit ends; None if another one is met in it."""
        seen, ends = self._behind(start, sought)
        return None if sought in seen else ends

    def loose_ends(self, start: bytes, sought: bytes) -> list[bytes] | None:
        """As `ends`, without those that the sought commit itself is known to follow.

        None of these leads to it, since no commit is its own ancestor: if no other one is left, it
        is not reached, and nobody had to be asked.
        """
        seen, ends = self._behind(start, sought)
        before, _ = self._behind(sought)
        self._followed += len(seen) + len(before)
        if self._followed > MAX_FOLLOWED:
            raise Malformed("the merges of a pack take too long to put in order")
        return None if sought in seen else [oid for oid in ends if oid not in before]

    def _behind(self, start: bytes, sought: bytes | None = None) -> tuple[set[bytes], list[bytes]]:
        """All that a commit is known to follow, and where that ends; no more once one is met."""
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
