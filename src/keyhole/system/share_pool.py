"""A bounded number of places (threads, processes) that sessions share (I12).

Used for lookups, judges and the reading of large fetches. Attack: a sandbox occupies every place
for as long as it can, and other sandboxes get none. So a session has a limit of its own below the
total, waiting requests take turns session by session, and the last places are for sessions that
have none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import OverLimit

if TYPE_CHECKING:
    from collections.abc import Hashable


class ShareBounds(Struct, frozen=True):
    """The numbers by which places are shared."""

    rule: str
    """The name of the share, in a decision."""
    total: int
    """Places for all sessions together."""
    each: int
    """Places that one session may have."""
    waiting: int
    """The number of requests of one session that may wait."""
    spare: int = 0
    """Places reserved for sessions that have none."""
    first_always: bool = False
    """Whether a session that has none gets one beyond `total`: then there can be `total` places and
    one for each session."""


class SharePool:
    """Gives out places and takes them back. For the thread of one loop only."""

    def __init__(self, bounds: ShareBounds) -> None:
        self._bounds = bounds
        self._taken = 0
        self._held: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """Waiters by session; the first session is served first, and then goes to the end."""

    async def take(self, who: Hashable, patience: float | None = None) -> None:
        """Take a place, now or when it is this session's turn; `leave` gives it back. Raises
        OverLimit, after `patience` seconds at the latest."""
        queue = self._waiting.get(who)
        if queue is None:
            if self._may_take(who):
                self._give(who)
                return
            queue = self._waiting[who] = deque()
        if len(queue) >= self._bounds.waiting:
            raise self._over(f"{len(queue)} of this session wait already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.leave(who)  # it came in the very moment in which the wait was given up
            else:
                self._forget(who, turn)
            if isinstance(error, TimeoutError):
                words = f"this session has {self._held.get(who, 0)} at work that do not end"
                raise self._over(words) from None
            raise

    def leave(self, who: Hashable) -> None:
        """Give a place back; the next session in turn gets it."""
        self._taken -= 1
        self._held[who] -= 1
        if not self._held[who]:
            del self._held[who]
        passed = 0
        while passed < len(self._waiting):
            following = next(iter(self._waiting))
            queue = self._waiting.pop(following)
            while queue and queue[0].done():
                queue.popleft()  # given up, and its task does not know yet
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

    def _over(self, why: str) -> OverLimit:
        """The error if a session has its whole share, and too many requests wait or have waited too
        long."""
        return OverLimit(Decision(reason=Reason.OVER_SHARE, rule=self._bounds.rule), why)

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
