"""Places that sessions share: threads, processes, whatever there is a bounded number of (I12).

Used for lookups, judges and the reading of large fetches. Attack: a sandbox occupies every place
for as long as it can, and nobody else gets one. So a session has a bound of its own below the bound
for all, those that wait take turns session by session, and the last places are for sessions that
have none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Hashable


class OverShare(Exception):
    """A session has its whole share, and too many wait for it or have waited too long."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How places are shared out."""

    total: int
    """Places for all sessions together."""
    each: int
    """Places that one session may have."""
    waiting: int
    """Those of one session that may wait."""
    spare: int = 0
    """Places that nobody gets who has one already."""
    first_always: bool = False
    """Whether a session that has none gets one beyond `total`: the most there can be is then
    `total` and one for each session."""


class Places:
    """Gives places out and takes them back. Of one loop's thread alone."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._taken = 0
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """By session; the first is looked at first, and then goes to the end."""

    async def take(self, who: Hashable, patience: float | None = None) -> None:
        """Have a place, now or when it is this session's turn; `leave` gives it back.

        Raises OverShare, after `patience` seconds at the latest.
        """
        queue = self._waiting.get(who)
        if queue is None:
            if self._may_take(who):
                self._give(who)
                return
            queue = self._waiting[who] = deque()
        if len(queue) >= self._bounds.waiting:
            raise OverShare(f"{len(queue)} of this session wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(who)  # it came in the very moment in which nobody waited any more
            else:
                self._forget(who, turn)
            if isinstance(error, TimeoutError):
                words = f"this session has {self._held.get(who, 0)} at work that do not end"
                raise OverShare(words) from None
            raise

    def leave(self, who: Hashable) -> None:
        """Give a place back; whoever's turn it is has it."""
        self._taken -= 1
        self._held[who] -= 1
        if not self._held[who]:
            del self._held[who]
        passed = 0
        while passed < len(self._waiting):
            following = next(iter(self._waiting))
            queue = self._waiting.pop(following)
            while queue and queue[0].done():
                queue.popleft()  # given up, and its task has not been told yet
            if not queue:
                continue
            if self._may_take(following):
                turn = queue.popleft()
                self._give(following)
                turn.set_result(None)
                passed = 0
            else:
                passed += 1
            if queue:
                self._waiting[following] = queue

    def _may_take(self, who: Hashable) -> bool:
        bounds, held = self._bounds, self._held.get(who, 0)
        if not held:
            return bounds.first_always or self._taken < bounds.total
        return held < bounds.each and self._taken < bounds.total - bounds.spare

    def _give(self, who: Hashable) -> None:
        self._taken += 1
        self._held[who] = self._held.get(who, 0) + 1

    def _forget(self, who: Hashable, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(who)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[who]
