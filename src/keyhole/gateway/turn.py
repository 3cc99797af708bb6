"""One session's share of the loop's time, turn by turn (I12).

All connections of a session spend from one `Turn`. When it is used up, what else arrives for the
session waits for the next turn of the loop, in which every other session is served as well. Attack:
a hundred connections with thousands of tiny requests in each read keep the loop for minutes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET = 0.002
"""Seconds of work in one turn: a dozen requests, or a megabyte of a transfer. A callback
is never interrupted, so that a session takes this and one callback more."""


class Turn:
    """A session's remaining work in this turn of the loop."""

    __slots__ = ("_loop", "_waiting", "left")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left = BUDGET
        """Seconds; at 0 or less, arriving work is handed to `later`."""
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def spend(self, began: float) -> None:
        """Count work that began at this time, by `perf_counter`."""
        before = self.left
        left = self.left = before - perf_counter() + began
        if left <= 0 < before:
            self._loop.call_soon(self._begin)

    def later(self, work: Callable[[], None]) -> None:
        """Do this in a turn that has time left, after the work that waits already."""
        self._waiting.append(work)
        if self.left > 0:
            self.left = 0.0
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a new turn with the work that waits."""
        self.left = BUDGET
        waiting = self._waiting
        while waiting and self.left > 0:
            work, began = waiting.popleft(), perf_counter()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - others wait behind it
                message = "a fault of ours in work that waited"
                self._loop.call_exception_handler({"message": message, "exception": error})
            self.spend(began)


class _Unbounded(Turn):
    """The turn of a connection that belongs to no session yet."""

    def __init__(self) -> None:
        self.left = math.inf

    def spend(self, began: float) -> None:
        """Count nothing."""

    def later(self, work: Callable[[], None]) -> None:
        """Do this in the next turn."""
        asyncio.get_running_loop().call_soon(work)


UNBOUNDED = _Unbounded()
