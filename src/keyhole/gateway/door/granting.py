"""Grants of a session while its door is open, and their expiry.

Owned by the door: it adds the clock to the pure `policy.grants`, and ends the connections of a
grant that has expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.policy.egress import decide_egress
from keyhole.policy.grants import Grant, grantable
from keyhole.system import clock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.gateway.context import Destination
    from keyhole.gateway.session import SessionState
    from keyhole.model.decision import EgressDecision
    from keyhole.model.host import Host


TICK = 1.0
"""Seconds between two checks for grants that have ended."""


class Granting:
    """The grants of one door."""

    __slots__ = ("_loop", "_over", "_state", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        over: Callable[[Callable[[Destination], bool]], None],
    ) -> None:
        """`over` ends tunnels."""
        self._loop = loop
        self._state = state
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def grant(self, host: Host, port: int, seconds: float, uses: int) -> Grant:
        """As `DoorHandle.grant`."""
        grantable(self._state.session.book, host, port, seconds, uses)
        granted = Grant(host, port, clock.now() + seconds, uses)
        self._expire()
        self._state.grants.add(granted)
        self._state.reports.forget(host.name)
        self._watch()
        return granted

    def views(self) -> tuple[Grant, ...]:
        """The grants that have not ended."""
        moment = clock.now()
        return tuple(each for each in self._state.grants.views() if moment < each.expires)

    def decide(self, host: Host, port: int) -> EgressDecision:
        """Decide a new connection; one that a grant lets in takes a use of it.

        Here, and not when it is dialled: nothing can come between the asking and the taking.
        """
        state = self._state
        granted = state.grants.find(host, port, clock.now())
        decision = decide_egress(state.session.book, host, port, granted)
        if granted is not None and decision.reason is Reason.GRANTED:
            state.grants.take(granted)
        return decision

    def decide_again(self, destination: Destination) -> EgressDecision:
        """Decide an open tunnel by another policy; grants still apply."""
        state, host, port = self._state, destination.host, destination.port
        decision = decide_egress(state.session.book, host, port)
        by_grant = not decision.allowed and destination.decision.reason is Reason.GRANTED
        if by_grant and state.grants.find(host, port, clock.now()) is not None:
            return destination.decision
        approved = not decision.allowed and destination.decision.reason is Reason.APPROVED
        if approved and not state.session.book.rules_of_name(host):
            return destination.decision  # a person allowed this very connection
        return decision

    def close(self) -> None:
        """The door is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Schedule a check for when the first of them ends."""
        self.close()
        ends = [each.expires for each in self._state.grants.views()]
        if ends:
            # The loop's timers stop while the host sleeps.
            left = max(0.0, min(ends) - clock.now())
            self._timer = self._loop.call_later(min(TICK, left), self._ends)

    def _ends(self) -> None:
        self._timer = None
        self._expire()
        self._watch()

    def _expire(self) -> None:
        over = {(each.host, each.port) for each in self._state.grants.expire(clock.now())}
        if over:
            self._over(
                lambda destination: (
                    destination.decision.reason is Reason.GRANTED
                    and (destination.host, destination.port) in over
                )
            )
