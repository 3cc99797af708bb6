"""The workers of a gateway: its data planes, over which the sessions are spread.

Used by `gateway_operations.py` and `gateway_sessions.py`, in the control process. A session stays
with the worker that opened it. Workers share no memory and no socket, and are told nothing of one
another: one that is stuck, taken over or lost costs its own sessions alone (I12).
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from keyhole.app.daemon.data_plane_process import DataPlaneSupervisor
from keyhole.app.daemon.limit_shares import DIVIDE_SECONDS, LimitShares
from keyhole.app.daemon.plane_calls import look_at_plane

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from keyhole.app.daemon.data_plane_process import DaemonDataPlaneProcess, DataPlaneListener
    from keyhole.app.daemon.keeper_process import KeeperProcess
    from keyhole.app.daemon.plane_messages import DataPlaneReady, LimitUses
    from keyhole.control.values import Protection
    from keyhole.policy.budget import GatewayLimits

DEFAULT_MOST = 4
"""Workers that are started without `--workers`, if there are as many cores."""

MOST = 64
"""Workers that a gateway may have. Each takes some 60 MiB before its first session."""


def default_workers() -> int:
    """One for each core that this process may use, up to the most."""
    return min(DEFAULT_MOST, len(os.sched_getaffinity(0)))


class Workers:
    """All of them, by number."""

    def __init__(
        self,
        count: int,
        limits: GatewayLimits,
        told: Mapping[str, Any],
        keeping: KeeperProcess,
        env: Mapping[str, str],
    ) -> None:
        """`told` is the first message to each, beside its shares."""
        self._shares = LimitShares(limits, count)
        self._each = [
            DataPlaneSupervisor(
                lambda number=number: {**told, "shares": self._shares.given(number)},  # type: ignore[misc]
                keeping,
                env,
            )
            for number in range(count)
        ]
        self._given_up: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loads: Callable[[], Mapping[DaemonDataPlaneProcess, int]] = dict
        self._dividing: asyncio.Task[None] | None = None
        self._again = False

    def __len__(self) -> int:
        return len(self._each)

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        heard: DataPlaneListener,
        loads: Callable[[], Mapping[DaemonDataPlaneProcess, int]],
    ) -> None:
        """Read their messages, and those of their successors. `loads` counts the sessions of
        each."""
        self._loop, self._loads = loop, loads
        for each in self._each:
            each.attach(loop, heard)

    async def first(self) -> list[DataPlaneReady]:
        """Wait until all serve. Raises SetupFailed."""
        return list(await asyncio.gather(*(each.first() for each in self._each)))

    @property
    def planes(self) -> list[DaemonDataPlaneProcess]:
        """The data planes that serve now, in the order of their workers."""
        return [each.now for number, each in enumerate(self._each) if number not in self._given_up]

    @property
    def restarts(self) -> int:
        """Data planes that were lost and replaced."""
        return sum(each.restarts for each in self._each)

    def number(self, plane: DaemonDataPlaneProcess) -> int:
        """The number of the worker that this is or was, from 1; 0 if it has a successor."""
        found = [number for number, each in enumerate(self._each, 1) if each.now is plane]
        return found[0] if found else 0

    def choose(self) -> DaemonDataPlaneProcess:
        """The worker for a new session: of those that respond, one with the fewest sessions."""
        planes, loads = self.planes, self._loads()
        responding = [each for each in planes if each.serves]
        return min(responding or planes, key=lambda each: loads.get(each, 0))

    def replace(self, plane: DaemonDataPlaneProcess, why: str) -> tuple[str, bool]:
        """Start another in place of one that was lost. Returns why there is none, or an empty text;
        and whether some worker is left."""
        number = self.number(plane) - 1
        lacks = self._each[number].replace(why) if number >= 0 else ""
        if lacks:
            self._given_up.add(number)
        return lacks, len(self._given_up) < len(self._each)

    async def close(self) -> None:
        """Let all end in order, and kill those that do not."""
        if self._dividing is not None:
            self._dividing.cancel()
        await asyncio.gather(*(each.close() for each in self._each))

    # ── limits of all together ────────────────────────────────────────────────────────────────────

    def divide(self) -> None:
        """A worker lacks some of a limit: divide all of them, and again if one says so
        meanwhile."""
        if self._loop is None or len(self._each) == 1:
            return
        if self._dividing is not None and not self._dividing.done():
            self._again = True
            return
        self._dividing = self._loop.create_task(self._divide())

    async def _divide(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._again = False
            loads = self._loads()
            counts = [loads.get(each.now, 0) for each in self._each]
            await self._shares.divide(self._ask, counts, loop.time())
            await asyncio.sleep(DIVIDE_SECONDS)
            if not self._again:
                return

    async def _ask(self, number: int, shares: Mapping[str, float]) -> LimitUses | None:
        plane = self._each[number].now
        if not plane.serves:
            return None
        told: LimitUses | None = await look_at_plane(plane, "share", {"shares": dict(shares)})
        # A successor was started with the shares that are known here, not with these.
        return told if plane is self._each[number].now and not plane.gone.is_set() else None


def combine_protections(ready: Sequence[DataPlaneReady]) -> tuple[Protection, ...]:
    """The protections of all workers: one holds if it holds in each."""
    lacking = {each.name: each for worker in ready for each in worker.protections if not each.on}
    return tuple(lacking.get(each.name, each) for each in ready[0].protections)
