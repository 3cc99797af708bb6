"""Published ports: connections of this host's browsers to servers in the sandbox.

Made by the door where the policy publishes a port. Its listeners are of the host's loopback, and
any local process may connect to them. A connection passes when its first request names the port
(`published_gate.py`), and is then copied both ways, unread. It takes nothing from the sandbox's own
connections: it has places of its own, as many as the helper made sockets (I9, I12). It takes its
place when its first request has passed: connections that say nothing keep no browser out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from keyhole.gateway.context import Destination
from keyhole.gateway.door.connection import may_dial
from keyhole.gateway.door.inner_sockets import InnerSockets
from keyhole.gateway.door.listeners import ACCEPTS_PER_TICK, Listeners
from keyhole.gateway.door.published_gate import PublishedGate, published_name
from keyhole.gateway.door.side import ClientSide, OriginSide
from keyhole.gateway.door.tunnel import Tunnel
from keyhole.gateway.sockets import reset
from keyhole.gateway.tasks import Tasks
from keyhole.model.decision import (
    AddressDecision,
    Decision,
    EgressDecision,
    Reason,
    Route,
    Verdict,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.gateway.context import DoorContext
    from keyhole.gateway.door.door import Door
    from keyhole.gateway.door.inner_sockets import InnerPlace
    from keyhole.gateway.session import SessionState

RULE = "sandbox.publish"

IDLE_SECONDS = 4 * 3600.0
"""Seconds without a byte after which a connection is cut. A page reloads when the WebSocket of its
dev server ends, so it is long."""

PAUSE_SECONDS = 0.1
"""Seconds to wait when no slot is free, or the system has no descriptor left."""

WAITING = 64
"""Connections that have no place yet. One more, and the oldest that has asked for nothing is cut:
browsers open a few ahead, and send a request the moment they need one."""

_LOOPBACK = IPv4Address("127.0.0.1")
_UNUSED = frozenset({Reason.CLIENT_LEFT, Reason.CLIENT_SILENT})
_ALLOWED = EgressDecision(Verdict.ALLOW, Reason.PUBLISHED, RULE, Route.TUNNEL)


class PublishedTunnel(Tunnel):
    """One connection of a browser."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        ports: tuple[int, int],
        ended: Callable[[Tunnel], None],
    ) -> None:
        name = published_name(state.session.id)
        self.judged = PublishedGate(name, *ports)
        super().__init__(loop, state, Destination(name, ports[0], _ALLOWED), self.judged, ended)

    def _client_side(self) -> ClientSide:
        return _BrowserSide(self)

    def make_origin(self, sock: socket.socket, joined: Callable[[OriginSide], None]) -> OriginSide:
        """The side of the server inside."""
        return _ServerSide(self, sock, joined)

    def change(self, decision: EgressDecision) -> None:
        """Go on: the ports of a run are those that it began with."""

    def _may_stay(self) -> bool:
        return True

    def deny(
        self, decision: Decision, reason: str, *, quiet: bool = False, **details: str | int
    ) -> None:
        """Record a refusal, without a line for the person: the browser shows it. Browsers open
        connections that they never use; no decision is made on those."""
        if reason in _UNUSED:
            self.settle(dial=False)
            return
        super().deny(decision, reason, quiet=True, **details)


class _BrowserSide(ClientSide):
    """Bytes to the server inside. They do not count as the sandbox's transfers."""

    def passed(self, data: bytes) -> None:
        tunnel = self.tunnel
        gate = tunnel.gate
        if gate is not None:
            data = tunnel.judge(gate, data)
            if not data:
                return
        tunnel.up += len(data)
        other = self.other
        if other is not None:
            other.write(data)
        elif self.transport is not None:
            tunnel.held.append(data)
            self.transport.pause_reading()


class _ServerSide(OriginSide):
    """Bytes to the browser."""

    def passed(self, data: bytes) -> None:
        self.tunnel.down += len(data)
        other = self.other
        if other is not None:
            other.write(data)


class PublishedPorts:
    """The published ports of one session, while its door is open."""

    def __init__(self, shared: DoorContext, state: SessionState, door: Door) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._state = state
        self._inner_ports = door.inner_ports
        self._inner = InnerSockets(door.inner)
        self._tasks = Tasks(shared.loop)
        self._tunnels: dict[Tunnel, asyncio.Task[object]] = {}
        self._unasked: dict[Tunnel, None] = {}
        """Tunnels whose first request has not passed yet, the oldest first."""
        self._places: dict[Tunnel, InnerPlace] = {}
        self._queue: deque[asyncio.Future[None]] = deque()
        """Tunnels that wait for a place."""
        self._listeners = Listeners(shared.loop, state, door.published, self._accept_some)
        self._listeners.resume()

    def close(self) -> None:
        """Close the ports, and cut every connection. The door closes the sockets."""
        self._listeners.close()
        for tunnel in list(self._tunnels):
            tunnel.cut(Reason.DOOR_CLOSED)
        self._tasks.cancel()

    def freeze(self) -> None:
        """The session is frozen: cut every connection; new ones are refused while it is."""
        for tunnel in list(self._tunnels):
            tunnel.cut(Reason.FROZEN)

    def sweep(self, now: float) -> None:
        """Cut connections that have been silent for too long."""
        for tunnel in [t for t in self._tunnels if t.is_stale(now, IDLE_SECONDS)]:
            tunnel.cut(Reason.IDLE)

    def _accept_some(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            if self._is_full and not self._unasked:
                self._listeners.pause()
                return
            if not self._shared.slots.take(len(self._tunnels)):
                self._listeners.pause(PAUSE_SECONDS)
                return
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                self._shared.slots.free()
                return
            except OSError:
                self._shared.slots.free()
                self._listeners.pause(PAUSE_SECONDS)
                return
            sock.setblocking(False)
            if self._is_full:
                next(iter(self._unasked)).cut(Reason.CLIENT_SILENT)
            self._admit(sock, listener.getsockname()[1])

    @property
    def _is_full(self) -> bool:
        return len(self._tunnels) - len(self._places) >= WAITING

    def _admit(self, sock: socket.socket, outer: int) -> None:
        state = self._state
        if state.frozen or not state.session.admitting():
            # Where no event can be written, nothing may happen (I8).
            reset(sock)
            sock.close()
            self._shared.slots.free()
            return
        inner = self._inner_ports[outer]
        tunnel = PublishedTunnel(self._loop, state, (outer, inner), self._ended)

        def failed() -> None:
            tunnel.cut(Reason.INTERNAL)
            if tunnel.client.transport is None:
                sock.close()

        self._unasked[tunnel] = None
        self._tunnels[tunnel] = self._tasks.start(self._serve(tunnel, sock, inner), failed, failed)

    async def _serve(self, tunnel: PublishedTunnel, sock: socket.socket, port: int) -> None:
        """Judge the first request, take a place, and connect both sides."""
        tunnel.client.sock = sock
        await self._loop.connect_accepted_socket(lambda: tunnel.client, sock)
        passes = await may_dial(tunnel)
        self._unasked.pop(tunnel, None)
        if not passes:
            return
        while not self._inner.any_free:
            free = self._loop.create_future()
            self._queue.append(free)
            await free
        if not tunnel.alive:
            self._wake_next()
            return
        self._places[tunnel] = place = self._inner.take()
        await _connect(self._loop, tunnel, place, port)

    def _ended(self, tunnel: Tunnel) -> None:
        """Free its place when nothing uses it any more: a task that still connects ends first."""
        task = self._tunnels.pop(tunnel)
        self._unasked.pop(tunnel, None)
        place = self._places.pop(tunnel, None)
        if task is not asyncio.current_task(self._loop):
            task.cancel()
        task.add_done_callback(lambda _: self._loop.call_soon(self._give_back, place))

    def _give_back(self, place: InnerPlace | None) -> None:
        if place is not None:
            self._inner.give_back(place)
        self._wake_next()
        self._shared.slots.free()
        self._listeners.resume()

    def _wake_next(self) -> None:
        while self._queue and self._inner.any_free:
            waiting = self._queue.popleft()
            if not waiting.done():  # its connection has ended
                waiting.set_result(None)
                return


async def _connect(
    loop: asyncio.AbstractEventLoop, tunnel: PublishedTunnel, place: InnerPlace, port: int
) -> None:
    """Connect the server's side."""
    try:
        inside = await place.reach(loop, port)
    except (OSError, TimeoutError):
        tunnel.refuse(tunnel.judged, Reason.UPSTREAM_UNREACHABLE)
        return
    found = AddressDecision(Verdict.ALLOW, Reason.PUBLISHED, RULE, _LOOPBACK, port)
    side = tunnel.origin_side(inside, b"", found)
    try:
        await loop.create_connection(lambda: side, sock=inside)
    except OSError:
        inside.close()
        tunnel.cut(Reason.UPSTREAM_UNREACHABLE)
