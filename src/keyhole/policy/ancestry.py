"""Commits as a graph: which are trusted, what lies before them, and whether one reaches another.

Used by `policy/trial.py`. Knows only what was shown so far, and asks nobody; a commit that was not
shown is where a way ends. Loops, never recursion: a history is as deep as whoever pushes likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.wire.gitobject import Commit


@dataclass(frozen=True, slots=True)
class Way:
    """What lies between some commits and the trusted ones."""

    new: list[bytes]
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
        way = Way([], [], [])
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
            way.new.append(oid)
            fresh = [parent for parent in dict.fromkeys(commit.parents) if parent not in seen]
            seen.update(fresh)
            queue += fresh
        return way

    def ends(self, start: bytes, sought: bytes) -> list[bytes] | None:
        """Where the known history of a commit ends; None if another one is met in it."""
        queue, ends = [start], []
        seen = {start}
        for oid in queue:  # it grows meanwhile
            if oid == sought:
                return None
            commit = self._commit(oid)
            if commit is None:
                ends.append(oid)
                continue
            fresh = [parent for parent in dict.fromkeys(commit.parents) if parent not in seen]
            seen.update(fresh)
            queue += fresh
        return ends
