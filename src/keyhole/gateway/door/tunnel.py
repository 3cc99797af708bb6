"""One tunnelled connection of a session: its two sides, its totals and its end.

A tunnel begins with its client's side alone; `connection.py` brings the other. The bytes are
copied by `side.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.context import Destination
from keyhole.gateway.door.side import ClientSide, OriginSide, Side
from keyhole.model.decision import (
    AddressDecision,
    Decision,
    EgressDecision,
    Reason,
    Verdict,
)
from keyhole.model.event import Event, EventKind
from keyhole.system.dialler import still_allowed

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Awaitable, Callable

    from keyhole.gateway.door.gate import Gate
    from keyhole.gateway.session import SessionState

LINGER = 2.0
"""Seconds that a refused client has to read the reason; a plain close would reset the connection
first."""

HALF_CLOSED_SILENCE = 60.0
"""Seconds of silence allowed after one side has ended. Otherwise the idle sockets of connection
pools would hold slots for ever."""

CLOSED = "closed"

_DENIED = Decision()


class Tunnel:
    """A connection from its first byte to its closing event."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        destination: Destination,
        gate: Gate,
        ended: Callable[[Tunnel], None],
    ) -> None:
        self.destination = destination
        self.state = state
        self.gate: Gate | None = gate
        self.up = 0
        self.down = 0
        self.client = self._client_side()
        self.origin: OriginSide | None = None
        self.held: list[bytes] = []
        self.ready: asyncio.Future[bool] = loop.create_future()
        """Whether the origin may be dialled: known when the gate has spoken."""
        self.approval: Callable[[], Awaitable[EgressDecision]] | None = None
        """Waits for a person's answer, as long as none has come."""
        self._loop = loop
        self._ended: Callable[[Tunnel], None] | None = ended
        self._began = loop.time()
        self._decided = False
        self._opened = False
        self._broken: str | None = None
        self._address: AddressDecision | None = None
        self._seen = (0, 0, self._began)
        self._linger: asyncio.TimerHandle | None = None

    def _client_side(self) -> ClientSide:
        return ClientSide(self)

    @property
    def lingers(self) -> bool:
        """Whether it was refused and only waits for the client to read the reason."""
        return self._linger is not None

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._ended is not None

    # ── the beginning ─────────────────────────────────────────────────────────────────────────────

    def judge(self, gate: Gate, data: bytes) -> bytes:
        """Feed the gate; returns the bytes that may pass."""
        if self._linger is not None:
            return b""
        step = gate.feed(data)
        if step.refusal is not None:
            self.refuse(gate, step.refusal)
            return b""
        if step.free:
            self.gate = None
        if step.forward:
            self.settle(dial=True)
        return step.forward

    def settle(self, *, dial: bool) -> None:
        """Decide, once, whether the origin may be dialled."""
        if not self.ready.done():
            self.ready.set_result(dial)

    def origin_side(
        self, sock: socket.socket, early: bytes, decision: AddressDecision
    ) -> OriginSide:
        """The protocol for a socket to the origin; it joins the tunnel when it is connected."""

        self._address, address = decision, decision.address
        ip = f"[{address}]" if address is not None and address.version == 6 else str(address)

        def joined(origin: OriginSide) -> None:
            self._join(origin, early, f"{ip}:{decision.port}")

        return self.make_origin(sock, joined)

    def make_origin(self, sock: socket.socket, joined: Callable[[OriginSide], None]) -> OriginSide:
        """The protocol of the origin's side."""
        return OriginSide(self, sock, joined)

    def _join(self, origin: OriginSide, early: bytes, address: str) -> None:
        if not self.alive or not self._may_stay():
            # The policy may have changed while it was dialled.
            origin.abort()
            self.cut(Reason.POLICY_CHANGED)
            return
        self.origin = origin
        self._opened = self._decided = True
        self._record(self.destination.decision.reason, address=address)
        self.client.other, origin.other = origin, self.client
        for data in self.held:
            origin.write(data)
        self.held.clear()
        if self.client.eof:
            origin.write_eof()
        if early:
            origin.data_received(early)
        if not origin.slow:
            self.client.resume()

    def change(self, decision: EgressDecision) -> None:
        """The policy has changed: go on under the new decision, or be cut."""
        destination = self.destination
        if decision.allowed and decision.route is destination.decision.route and self._may_stay():
            self.destination = Destination(destination.host, destination.port, decision)
        else:
            self.cut(Reason.POLICY_CHANGED)

    def _may_stay(self) -> bool:
        """Whether the address may still be dialled for this name (I4)."""
        destination, book = self.destination, self.state.session.book
        address = self._address
        return address is None or still_allowed(book, destination.host, destination.port, address)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def refuse(self, gate: Gate, reason: str, decision: Decision = _DENIED) -> None:
        """Refuse because of the client's first bytes, or a person's answer: answer in the client's
        own protocol, then close."""
        self.deny(decision, reason)
        last_bytes = gate.last_bytes(reason, decision.rule)
        if not last_bytes:
            self.cut(reason)
            return
        origin, self.origin, self.client.other = self.origin, None, None
        if origin is not None:
            origin.other = None
            origin.abort()
        self.client.write(last_bytes)
        self.client.write_eof()
        self._broken = reason
        self._linger = self._loop.call_later(LINGER, self.cut, reason)
        self.client.resume()

    def deny(
        self, decision: Decision, reason: str, *, quiet: bool = False, **details: str | int
    ) -> None:
        """Record a refusal and tell the user, unless nothing was refused."""
        destination = self.destination
        name = destination.host.name
        extra = (("port", destination.port), *details.items())
        self._decided = True
        self.settle(dial=False)
        self.state.record(
            Event(
                EventKind.CONNECT,
                decision.verdict,
                reason,
                decision.rule,
                destination.host.name,
                extra,
            )
        )
        if not quiet:
            self.state.tell(name, destination.port, reason)

    def over(self, decision: Decision) -> None:
        """A byte limit of the session is reached."""
        self._decided = True
        self.state.over_limit(decision, self.destination.host.name)
        self.cut(decision.reason)

    def cut(self, why: str) -> None:
        """End both sides now, by reset."""
        self.client.abort()
        if self.origin is not None:
            self.origin.abort()
        self._finish(why)

    def side_lost(self, side: Side, exc: Exception | None) -> None:
        """A side has ended: close the other one, after its unsent bytes if there was no error."""
        other, side.other = side.other, None
        if exc is not None and self._broken is None:
            self._broken = "client-reset" if side is self.client else "origin-reset"
        if other is not None:
            other.other = None
            if exc is None and side.eof:
                other.close()
            else:
                other.abort()
        client_gone = self.client.transport is None
        if client_gone and (self.origin is None or self.origin.transport is None):
            self._finish(self._broken or CLOSED)

    def _finish(self, why: str) -> None:
        """Record the totals, once, and leave the session."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        self.settle(dial=False)
        self.approval = None
        if self._linger is not None:
            self._linger.cancel()
        if self._opened:
            took = round((self._loop.time() - self._began) * 1000)
            self._record(CLOSED, up=self.up, down=self.down, ms=took, end=why)
        elif not self._decided:
            self.deny(Decision(), Reason.CLIENT_LEFT if why == CLOSED else why, quiet=True)
        self.held.clear()
        if self.gate is not None:
            self.gate.close()
            self.gate = None
        ended(self)

    def silent_for(self, now: float) -> float:
        """Seconds without a byte either way; asked by the sweep, so that a chunk costs nothing."""
        if (self.up, self.down) != self._seen[:2]:
            self._seen = (self.up, self.down, now)
        return now - self._seen[2]

    def is_stale(self, now: float, idle_timeout: float) -> bool:
        """Whether it has been silent for too long; while it is set up, other timeouts apply."""
        if not self._opened:
            return False
        origin = self.origin
        done = origin is None or origin.eof or self.client.transport is None
        allowed = min(HALF_CLOSED_SILENCE, idle_timeout) if done else idle_timeout
        return self.silent_for(now) > allowed

    def _record(self, reason: str, **details: str | int) -> None:
        destination, rule = self.destination, self.destination.decision.rule
        extra = (("port", destination.port), *details.items())
        self.state.record(
            Event(EventKind.CONNECT, Verdict.ALLOW, reason, rule, destination.host.name, extra)
        )
