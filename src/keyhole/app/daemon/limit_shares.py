"""Divides the limits of all sandboxes together (`[gateway]`) between the workers of a gateway.

Used by `workers.py`, in the control process. Each worker has a share and decides by it alone, so
that no request waits for another process. A worker that lacks some says so; then all workers are
asked for their use, and each limit is divided anew (`policy/shared_limit.py`). A share is lowered
and confirmed before another is raised, and a worker that does not answer keeps its own: at no time
do the shares sum to more than the limit (I9).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.policy.shared_limit import ShareWish, divide_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from keyhole.app.daemon.plane_messages import LimitUses
    from keyhole.policy.budget import GatewayLimits

    AskWorker = Callable[[int, Mapping[str, float]], Awaitable[LimitUses | None]]
    """Sends a worker new shares, which may be none, and returns its use, or None if it does not
    answer."""

CONNECTIONS = "connections"
RATES = ("connections_per_second", "requests_per_second", "dns_per_second", "audit_per_second")

DIVIDE_SECONDS = 0.25
"""Seconds between two divisions. A flood lasts as long as its sandbox likes, and takes four rounds
of calls a second (I12)."""


NO_USE = (0, False)
"""Of a limit that a worker says nothing of."""


class LimitShares:
    """The shares of each worker."""

    def __init__(self, limits: GatewayLimits, workers: int) -> None:
        bounds = {name: getattr(limits, name) for name in (CONNECTIONS, *RATES)}
        self._limits: dict[str, int] = {n: each for n, each in bounds.items() if each is not None}
        first = {name: limit / workers for name, limit in self._limits.items()}
        self._given = [dict(first) for _ in range(workers)]
        self._looked = 0.0

    def given(self, worker: int) -> dict[str, float]:
        """The shares of a worker, as a new process gets them."""
        return dict(self._given[worker])

    async def divide(self, ask: AskWorker, sessions: Sequence[int], now: float) -> None:
        """Divide every limit by use and by the number of sessions of each worker."""
        everyone = range(len(self._given))
        # 1. Look. The use of rates is since the last look.
        uses = dict(enumerate(await asyncio.gather(*(ask(each, {}) for each in everyone))))
        seconds, self._looked = max(1.0, now - self._looked), now
        heard = {each: told.by_name() for each, told in uses.items() if told is not None}
        wanted: dict[int, dict[str, float]] = {each: {} for each in heard}
        for name, limit in self._limits.items():
            silent = sum(self._given[each][name] for each in everyone if each not in heard)
            span = 1.0 if name == CONNECTIONS else seconds
            wishes = []
            for each, told in heard.items():
                used, lacking = told.get(name, NO_USE)
                wishes.append(ShareWish(used / span, lacking, sessions[each]))
            shares = divide_limit(max(0.0, limit - silent), wishes)
            for each, share in zip(heard, shares, strict=True):
                wanted[each][name] = share
        # 2. Lower, and wait until that is in force.
        await asyncio.gather(*(self._lower(ask, each, wanted[each]) for each in heard))
        # 3. Raise by what is free now.
        await asyncio.gather(*(self._raise(ask, each, wanted[each]) for each in heard))

    async def _lower(self, ask: AskWorker, worker: int, wanted: Mapping[str, float]) -> None:
        given = self._given[worker]
        lower = {name: share for name, share in wanted.items() if share < given[name]}
        told = await ask(worker, lower) if lower else None
        if told is None:
            return
        # Connections that it holds stay; no new one is accepted until they are fewer.
        held = told.by_name().get(CONNECTIONS, NO_USE)[0]
        for name, share in lower.items():
            given[name] = max(share, held) if name == CONNECTIONS else share

    async def _raise(self, ask: AskWorker, worker: int, wanted: Mapping[str, float]) -> None:
        given, raised = self._given[worker], {}
        for name, share in wanted.items():
            free = self._limits[name] - sum(each[name] for each in self._given)
            more = min(share - given[name], free)
            if more > 0:
                given[name] += more
                raised[name] = given[name]
        if raised:
            await ask(worker, raised)
