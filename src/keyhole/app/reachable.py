"""Whether what sessions are allowed to reach can be reached: asked for the gateway's health.

By the gateway, as for a sandbox: resolved, judged, dialled, and hung up. Who asks often gets the
same answer for a while, so that a health check is no load on an origin (I9).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.control.values import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.app.live import House, LiveSession
    from keyhole.model.host import HostPattern
    from keyhole.policy.policy import Policy

MAX_TARGETS = 8
"""Hosts that are dialled for one answer."""

SECONDS = 3.0
"""For each of them, all at once: less than engines give a health check."""

FRESH_SECONDS = 5.0
"""How long an answer is used again."""


class Reachable:
    """Dials for the health of one gateway."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._known: dict[tuple[int, HostPattern], tuple[float, Check]] = {}

    async def look(self, sessions: Iterable[LiveSession]) -> list[Check]:
        """The CA of each session and the hosts that it is for."""
        sessions = list(sessions)
        checks = []
        if sessions:
            made = all(each.trusted for each in sessions)
            checks.append(Check("ca", made, "" if made else "a session has no CA"))
        asked = [(s, target) for s in sessions for target in targets(s.provision.policy)]
        now = self._house.loop.time()
        self._known = {key: value for key, value in self._known.items() if value[0] > now}
        tried = await asyncio.gather(*(self._try(*each) for each in asked[:MAX_TARGETS]))
        return checks + list(tried)

    async def _try(self, session: LiveSession, target: HostPattern) -> Check:
        key = id(session), target
        if key in self._known:
            return self._known[key][1]
        try:
            async with asyncio.timeout(SECONDS):
                lacks = await session.try_upstream(target.host, target.port)
        except TimeoutError:
            lacks = f"it did not answer within {SECONDS:g} s"
        check = Check(f"{target.name}:{target.port}"[:128], not lacks, lacks[:1000])
        self._known[key] = self._house.loop.time() + FRESH_SECONDS, check
        return check


def targets(policy: Policy) -> Iterator[HostPattern]:
    """The first host of each service that has a name of its own, and the first that is allowed."""
    groups = [service.patterns for service in policy.services]
    for patterns in (*groups, policy.allow):
        named = next((each for each in patterns if not each.subdomains), None)
        if named is not None:
            yield named
