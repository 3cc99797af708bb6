"""The gateway: many doors on one loop. The way into this room.

Made by the composition root, which runs the loop (uvloop's) and hands over doors and sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.gateway.body_memory import BodyMemory
from keyhole.gateway.budgets import Commons
from keyhole.gateway.context import DoorContext
from keyhole.gateway.door.door import namespace_cookie
from keyhole.gateway.door.handle import DoorHandle
from keyhole.gateway.git import fetches
from keyhole.gateway.http import judged_body
from keyhole.gateway.slots import Slots
from keyhole.model.errors import Refused, UpstreamFailed
from keyhole.policy.budget import GatewayLimits
from keyhole.system.dialler import Dialler
from keyhole.system.share_pool import SharePool

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from keyhole.gateway.door.door import Door
    from keyhole.gateway.session import Session
    from keyhole.model.host import Host
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.resolver import Resolver

IDLE_TIMEOUT = 15 * 60.0
"""Seconds without a byte either way after which a tunnel is cut."""

SWEEP_INTERVAL = 5.0
"""Seconds between two sweeps for silent connections: one timer for all, none per connection."""


class Gateway:
    """Opens doors and sweeps them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        resolver: Resolver,
        *,
        limits: GatewayLimits | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        is_own_port: Callable[[int], bool] | None = None,
        lack: Callable[[], None] | None = None,
    ) -> None:
        """`is_own_port` tells Keyhole's own ports of the host; without it, no port is used. `lack`
        is called when a limit of all sandboxes together refuses."""
        self._loop = loop
        self._idle_timeout = idle_timeout
        self._interval = min(SWEEP_INTERVAL, idle_timeout / 4)
        # Each connection takes two descriptors, so RLIMIT_NOFILE is to be above twice their limit.
        self._limits = limits or GatewayLimits()
        self._slots = Slots(self._limits.connections, lack)
        self._commons = Commons(self._limits, loop.time(), lack)
        self._shared = DoorContext(
            loop,
            Dialler(loop, resolver),
            self._slots,
            self._commons,
            SharePool(fetches.PLACES),
            SharePool(judged_body.PLACES),
            BodyMemory(),
        )
        if is_own_port is not None:
            self._shared = replace(self._shared, is_own_port=is_own_port)
        self._doors: set[DoorHandle] = set()
        self._timer: asyncio.TimerHandle | None = None

    def open_door(self, door: Door, session: Session) -> DoorHandle:
        """Accept on a door for a session until the handle is closed. Takes ownership of the
        sockets.

        Raises Refused, and leaves them to the caller. With two doors of one namespace, the session
        of a connection would be a matter of chance.
        """
        if len(self._doors) >= self._limits.sessions:
            raise Refused(f"the gateway has {self._limits.sessions} sessions, which is its most")
        cookies = {namespace_cookie(each) for each in door.sockets_inside}
        if len(cookies) != 1 or any(handle.cookie in cookies for handle in self._doors):
            raise Refused("the sockets of a door are of one namespace, which has no other")
        handle = DoorHandle(self._shared, door, session, self._doors.discard)
        self._doors.add(handle)
        if self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._sweep)
        return handle

    def look_at_limits(self) -> dict[str, tuple[int, bool]]:
        """The use of each limit of all sandboxes together, and whether it refused: connections that
        are open now; for rates, since the last look."""
        rates = {name: each.look() for name, each in self._commons.named().items()}
        return rates | {"connections": self._slots.look()}

    def share_limits(self, shares: Mapping[str, float]) -> None:
        """Continue with these shares of the limits; the others stay as they are."""
        if "connections" in shares:
            self._slots.resize(int(shares["connections"]))
        for name, bucket in self._commons.named().items():
            if name in shares:
                bucket.resize(shares[name], self._loop.time())

    async def try_upstream(self, book: Rulebook, host: Host, port: int) -> str:
        """Why a name and port cannot be reached now, empty when they can.

        Resolved, judged and dialled as for a sandbox; nothing is sent.
        """
        try:
            dialled = await self._shared.upstream.dial(book, host, port)
        except UpstreamFailed as failed:
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
