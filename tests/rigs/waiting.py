"""The one way in which tests wait: look again until something holds, and fail after PATIENCE."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 90.0
"""Seconds after which something counts as hung; on a quiet machine nothing takes two."""


def until(
    holds: Callable[[], object],
    seconds: float = PATIENCE,
    pause: float = 0.005,
    told: Callable[[], object] = lambda: "it did not come to be",
) -> float:
    """Wait for another thread, process or the kernel; the seconds that it took.

    `told` is asked what to say when it takes too long.
    """
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < seconds, told()
        time.sleep(pause)
    return time.monotonic() - begun


async def until_in_loop(holds: Callable[[], object], pause: float = 0.0) -> None:
    """Let the loop go round until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - nothing here could set an event
            await asyncio.sleep(pause)
