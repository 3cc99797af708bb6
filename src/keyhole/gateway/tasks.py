"""The tasks of one connection or door: each ends with its owner, and none fails unseen.

An exception in a task is reported to the loop and ends what it belongs to (`failed`). Callbacks
start tasks here, since no coroutine lives as long as a connection that an `asyncio.TaskGroup` could
be held open in.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Tasks:
    """The owner of tasks."""

    __slots__ = ("_loop", "_running")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._running: set[asyncio.Task[object]] = set()

    def start(
        self,
        work: Coroutine[object, object, object],
        failed: Callable[[], None],
        cancelled: Callable[[], None] | None = None,
    ) -> asyncio.Task[object]:
        """Run this; the callbacks are for when it raises, and for when it is cancelled."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(partial(self._done, failed, cancelled))
        return task

    def cancel(self) -> None:
        """End all of them but the one that asks for it: no caller waits for their results."""
        if self._running:
            current = asyncio.current_task(self._loop)
            for task in tuple(self._running):
                if task is not current:
                    task.cancel()

    def _done(
        self,
        failed: Callable[[], None],
        cancelled: Callable[[], None] | None,
        task: asyncio.Task[object],
    ) -> None:
        self._running.discard(task)
        if task.cancelled():
            if cancelled is not None:
                cancelled()
            return
        fault = task.exception()
        if fault is not None:
            self._loop.call_exception_handler({"message": "a fault of ours", "exception": fault})
            failed()
