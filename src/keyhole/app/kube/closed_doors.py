"""Doors that are closed although their pods run, and when each is tried again.

Kept by `pod_sessions.py`. A door that waits for a SandboxClaim is tried when a change is about it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from keyhole.app.kube.pod_records import PodRecord

RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Pauses before a closed door of a pod that runs is tried again; the last one is repeated."""


class ClosedDoor(Struct):
    """One of them."""

    record: PodRecord
    at: float
    """When it is tried again, by the loop's clock."""
    tries: int = 0


class ClosedDoors(dict[str, ClosedDoor]):
    """All of them, by the pod's uid."""

    def try_now(self, record: PodRecord) -> None:
        """Have a door opened at once."""
        self[record.pod.uid] = ClosedDoor(record, 0.0)

    def try_later(self, record: PodRecord, tries: int) -> None:
        """Have a door tried again after so many tries."""
        pause = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
        at = asyncio.get_running_loop().time() + pause
        self[record.pod.uid] = ClosedDoor(record, at, tries + 1)

    def try_seldom(self, record: PodRecord) -> None:
        """The same for a door that only a change of a policy can open, which is heard of."""
        self.try_later(record, len(RETRY_SECONDS))

    def await_claim(self, record: PodRecord) -> None:
        """Keep a door closed until a change of a claim is about its pod."""
        self[record.pod.uid] = ClosedDoor(record, math.inf)

    def hasten(self) -> None:
        """Have every door tried now."""
        for closed in self.values():
            closed.at, closed.tries = 0.0, 0

    def due(self) -> list[ClosedDoor]:
        """The doors whose time has come."""
        now = asyncio.get_running_loop().time()
        return [each for each in self.values() if each.at <= now]
