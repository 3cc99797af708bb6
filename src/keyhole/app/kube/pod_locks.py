"""Lets one call about a pod wait for another, while calls about other pods go on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class PodLock(Struct):
    """The lock of one pod; `users` have it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class PodLocks:
    """The locks of pods that somebody calls about."""

    def __init__(self) -> None:
        self._locks: dict[str, PodLock] = {}

    @contextlib.asynccontextmanager
    async def alone(self, uid: str) -> AsyncIterator[None]:
        """Wait for other calls about a pod."""
        held = self._locks.setdefault(uid, PodLock())
        held.users += 1
        try:
            async with held.lock:
                yield
        finally:
            held.users -= 1
            if not held.users:
                del self._locks[uid]
