"""The gateway: many doors on one loop. The way into this room.

Made by the composition root, which runs the loop (uvloop's) and hands over doors and sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import fetches
from keyhole.gateway.budgets import Commons
from keyhole.gateway.door import namespace_cookie
from keyhole.gateway.handle import DoorHandle, Shared
from keyhole.gateway.slots import Slots
from keyhole.policy.budget import GatewayLimits
from keyhole.system.dialler import AddressRefused, Dialler, Unreachable
from keyhole.system.places import Places

if TYPE_CHECKING:
    import asyncio

    from keyhole.gateway.door import Door
    from keyhole.gateway.session import Session
    from keyhole.model.host import Host
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.resolver import Resolver

IDLE_TIMEOUT = 15 * 60.0
"""Seconds without a byte either way after which a tunnel is cut."""

SWEEP_INTERVAL = 5.0
"""Seconds between two looks at what is silent: one timer for all, none per connection."""


class SameNamespace(Exception):
    """A door to this namespace is open already, or its sockets are of several (I5)."""


class GatewayFull(Exception):
    """It serves as many sandboxes as `gateway.sessions` says."""


class Gateway:
    """Opens doors and sweeps them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolver: Resolver,
        *,
        limits: GatewayLimits | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        self._loop = loop
        self._idle_timeout = idle_timeout
        self._interval = min(SWEEP_INTERVAL, idle_timeout / 4)
        # Each connection takes two descriptors, so RLIMIT_NOFILE is to be above twice their limit.
        self._limits = limits or GatewayLimits()
        self._shared = Shared(
            loop,
            Dialler(loop, resolver),
            Slots(self._limits.connections),
            Commons(self._limits, loop.time()),
            Places(fetches.PLACES),
        )
        self._doors: set[DoorHandle] = set()
        self._timer: asyncio.TimerHandle | None = None

    def open_door(self, door: Door, session: Session) -> DoorHandle:
        """Accept on a door for a session until the handle is closed; the sockets are now ours.

        Raises SameNamespace or GatewayFull, and leaves them to the caller. Two doors of one
        namespace would make it a matter of chance whose session a connection is of.
        """
        if len(self._doors) >= self._limits.sessions:
            raise GatewayFull(
                f"the gateway has {self._limits.sessions} sessions, which is its most"
            )
        cookies = {namespace_cookie(each) for each in (*door.listeners, door.udp)}
        if len(cookies) != 1 or any(handle.cookie in cookies for handle in self._doors):
            raise SameNamespace("the sockets of a door are of one namespace, which has no other")
        handle = DoorHandle(self._shared, door, session, self._doors.discard)
        self._doors.add(handle)
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._sweep)
        return handle

    async def try_upstream(self, book: Rulebook, host: Host, port: int) -> str:
        """Why a name and port cannot be reached now, empty when they can.

        Resolved, judged and dialled as for a sandbox; nothing is sent.
        """
        try:
            dialled = await self._shared.upstream.dial(book, host, port)
        except AddressRefused as refused:
            return f"its address is refused ({refused.decision.reason})"
        except Unreachable as failed:
            return f"{failed.reason}: {failed}"
        dialled.sock.close()
        return ""

    def close(self) -> None:
        """Close every door."""
        for handle in list(self._doors):
            handle.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        for handle in self._doors:
            handle.sweep(now, self._idle_timeout)
        if self._doors:
            self._timer = self._loop.call_later(self._interval, self._sweep)
