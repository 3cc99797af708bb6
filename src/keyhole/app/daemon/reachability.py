"""Checks whether the allowed hosts of sessions can be reached, for the gateway's health.

The gateway resolves, judges and dials them as for a sandbox, and closes the connection. The result
is cached for a while, so that a health check is no load on an origin (I9).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.control.values import HealthCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.app.session.live_session import GatewayContext, LiveSession
    from keyhole.model.host import HostPattern
    from keyhole.policy.policy import Policy

MAX_TARGETS = 8
"""Hosts that are dialled for one answer."""

SECONDS = 3.0
"""Seconds for all of them, which are dialled at once: less than engines give a health check."""

FRESH_SECONDS = 5.0
"""How long an answer is used again."""


class ReachabilityCheck:
    """Dials hosts to check the health of one gateway."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._known: dict[tuple[int, HostPattern], tuple[float, HealthCheck]] = {}

    async def look(self, sessions: Iterable[LiveSession]) -> list[HealthCheck]:
        """Check the CA of each session, and the hosts that its policy names."""
        sessions = list(sessions)
        checks = []
        if sessions:
            made = all(each.trusted for each in sessions)
            checks.append(HealthCheck("ca", made, "" if made else "a session has no CA"))
        asked = [
            (s, target) for s in sessions for target in reachability_targets(s.provision.policy)
        ]
        now = self._context.loop.time()
        self._known = {key: value for key, value in self._known.items() if value[0] > now}
        tried = await asyncio.gather(*(self._try(*each) for each in asked[:MAX_TARGETS]))
        return checks + list(tried)

    async def _try(self, session: LiveSession, target: HostPattern) -> HealthCheck:
        key = id(session), target
        if key in self._known:
            return self._known[key][1]
        try:
            async with asyncio.timeout(SECONDS):
                lacks = await session.try_upstream(target.host, target.port)
        except TimeoutError:
            lacks = f"it did not answer within {SECONDS:g} s"
        check = HealthCheck(f"{target.name}:{target.port}"[:128], not lacks, lacks[:1000])
        self._known[key] = self._context.loop.time() + FRESH_SECONDS, check
        return check


def reachability_targets(policy: Policy) -> Iterator[HostPattern]:
    """The first host without a wildcard of each service, and the first one of `egress.allow`."""
    groups = [service.patterns for service in policy.services]
    for patterns in (*groups, policy.allow):
        named = next((each for each in patterns if not each.subdomains), None)
        if named is not None:
            yield named
