"""What a person grants a session while its door is open, and when that ends.

Owned by the door: it has the clock that the pure `policy.grants` is without, and says which
connections are over with the grant that let them in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.policy.egress import decide_egress
from keyhole.policy.grants import Grant, grantable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from keyhole.gateway.session import SessionState
    from keyhole.gateway.tunnel import Bound
    from keyhole.model.decision import EgressDecision
    from keyhole.model.host import Host


TICK = 1.0
"""Seconds between two looks at what was granted."""


def now() -> float:
    """Seconds since boot, those of sleep included: what was granted for ten minutes is over when a
    laptop is opened the next morning."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Granting:
    """The grants of one door."""

    __slots__ = ("_loop", "_over", "_state", "_timer")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        over: Callable[[Callable[[Bound], bool]], None],
    ) -> None:
        """`over` ends the tunnels that it is told to."""
        self._loop = loop
        self._state = state
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    def grant(self, host: Host, port: int, seconds: float, uses: int) -> Grant:
        """As `DoorHandle.grant`."""
        grantable(self._state.session.book, host, port, seconds, uses)
        granted = Grant(host, port, now() + seconds, uses)
        self._expire()
        self._state.grants.add(granted)
        self._state.tell_again(host.name)
        self._watch()
        return granted

    def views(self) -> tuple[Grant, ...]:
        """Those that last."""
        moment = now()
        return tuple(each for each in self._state.grants.views() if moment < each.expires)

    def decide(self, host: Host, port: int) -> EgressDecision:
        """Decide a new connection; one that a grant lets in takes a use of it.

        Here, and not when it is dialled: nothing can come between the asking and the taking.
        """
        state = self._state
        granted = state.grants.find(host, port, now())
        decision = decide_egress(state.session.book, host, port, granted)
        if granted is not None and decision.reason is Reason.GRANTED:
            state.grants.take(granted)
        return decision

    def decide_again(self, bound: Bound) -> EgressDecision:
        """Decide a tunnel that is open, by another policy; what a grant let in it still lets in."""
        state, host, port = self._state, bound.host, bound.port
        decision = decide_egress(state.session.book, host, port)
        by_grant = not decision.allowed and bound.decision.reason is Reason.GRANTED
        if by_grant and state.grants.find(host, port, now()) is not None:
            return bound.decision
        return decision

    def close(self) -> None:
        """The door is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        """Wake up when the first of them ends."""
        self.close()
        ends = [each.expires for each in self._state.grants.views()]
        if ends:
            # The loop's timers stop while the host sleeps.
            left = max(0.0, min(ends) - now())
            self._timer = self._loop.call_later(min(TICK, left), self._ends)

    def _ends(self) -> None:
        self._timer = None
        self._expire()
        self._watch()

    def _expire(self) -> None:
        over = {(each.host, each.port) for each in self._state.grants.expire(now())}
        if over:
            self._over(
                lambda bound: (
                    bound.decision.reason is Reason.GRANTED and (bound.host, bound.port) in over
                )
            )
