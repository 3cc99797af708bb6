"""One connection of a session: what joins its two sides, and its totals and its end.

A tunnel begins with its client's side alone; `connection.py` brings the other. The bytes are
copied by `side.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.side import ClientSide, OriginSide, Side
from keyhole.model.decision import NO_RULE, AddressDecision, Decision, EgressDecision, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass
from keyhole.system.dialler import still_allowed

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from keyhole.gateway.gate import Gate
    from keyhole.gateway.session import SessionState
    from keyhole.model.host import Host

LINGER = 2.0
"""Seconds that a refused client has to read why; a plain close would reset it before it does."""

HALF_CLOSED_SILENCE = 60.0
"""Seconds of silence once a side is done; the sockets of idle pools would hold slots for ever."""

CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a connection goes, and what allowed it."""

    host: Host
    port: int
    decision: EgressDecision


class Tunnel:
    """A connection from its first byte to its closing event."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        bound: Bound,
        gate: Gate,
        ended: Callable[[Tunnel], None],
    ) -> None:
        self.bound = bound
        self.state = state
        self.gate: Gate | None = gate
        self.up = 0
        self.down = 0
        self.client = ClientSide(self)
        self.origin: OriginSide | None = None
        self.held: list[bytes] = []
        self.ready: asyncio.Future[bool] = loop.create_future()
        """Whether the origin may be dialled: known when the gate has spoken."""
        self._loop = loop
        self._ended: Callable[[Tunnel], None] | None = ended
        self._began = loop.time()
        self._decided = False
        self._opened = False
        self._broken: str | None = None
        self._address: AddressDecision | None = None
        self._seen = (0, 0, self._began)
        self._linger: asyncio.TimerHandle | None = None

    @property
    def lingers(self) -> bool:
        """Whether it was refused and only waits for the client to have read why."""
        return self._linger is not None

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._ended is not None

    # ── the beginning ─────────────────────────────────────────────────────────────────────────────

    def judge(self, gate: Gate, data: bytes) -> bytes:
        """Feed the gate; what comes back may go on."""
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
        """Say, once, whether the origin may be dialled."""
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

        return OriginSide(self, sock, joined)

    def _join(self, origin: OriginSide, early: bytes, address: str) -> None:
        if not self.alive or not self._may_stay():
            # The policy may have changed while it was dialled.
            origin.abort()
            self.cut(refusal.POLICY_CHANGED)
            return
        self.origin = origin
        self._opened = self._decided = True
        self._record(self.bound.decision.reason, address=address)
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
        """The policy has changed: stay by this decision of the new one, or be cut."""
        bound = self.bound
        if decision.allowed and decision.route is bound.decision.route and self._may_stay():
            self.bound = Bound(bound.host, bound.port, decision)
        else:
            self.cut(refusal.POLICY_CHANGED)

    def _may_stay(self) -> bool:
        """Whether the address is still one that is dialled for this name (I4)."""
        bound, book = self.bound, self.state.session.book
        address = self._address
        return address is None or still_allowed(book, bound.host, bound.port, address)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def refuse(self, gate: Gate, reason: str) -> None:
        """Refuse by what the client said: tell it in its own protocol, then close."""
        self.deny(Decision(), reason)
        farewell = gate.farewell(reason, NO_RULE)
        if not farewell:
            self.cut(reason)
            return
        origin, self.origin, self.client.other = self.origin, None, None
        if origin is not None:
            origin.other = None
            origin.abort()
        self.client.write(farewell)
        self.client.write_eof()
        self._broken = reason
        self._linger = self._loop.call_later(LINGER, self.cut, reason)
        self.client.resume()

    def deny(
        self, decision: Decision, reason: str, *, quiet: bool = False, **details: str | int
    ) -> None:
        """Write a refusal down and tell the person, unless nobody was refused anything."""
        bound = self.bound
        extra = (("port", bound.port), *details.items())
        self._decided = True
        self.settle(dial=False)
        self.state.record(
            Event(
                EventKind.CONNECT, decision.verdict, reason, decision.rule, bound.host.name, extra
            )
        )
        if not quiet:
            self.state.tell(bound.host.name, bound.port, reason)

    def over(self, decision: Decision) -> None:
        """A byte limit of the session is reached."""
        self._decided = True
        self.state.over_limit(decision, self.bound.host.name)
        self.cut(decision.reason)

    def cut(self, why: str) -> None:
        """End both sides now, by reset."""
        self.client.abort()
        if self.origin is not None:
            self.origin.abort()
        self._finish(why)

    def side_lost(self, side: Side, exc: Exception | None) -> None:
        """A side is gone: the other follows, with what it still has to write if all was well."""
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
        """Write the totals down, once, and leave the session."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        self.settle(dial=False)
        if self._linger is not None:
            self._linger.cancel()
        if self._opened:
            took = round((self._loop.time() - self._began) * 1000)
            self._record(CLOSED, up=self.up, down=self.down, ms=took, end=why)
        elif not self._decided:
            self.deny(Decision(), refusal.CLIENT_LEFT if why == CLOSED else why, quiet=True)
        self.held.clear()
        self.gate = None
        ended(self)

    def silent_for(self, now: float) -> float:
        """Seconds without a byte either way; asked by the sweep, so that a chunk costs nothing."""
        if (self.up, self.down) != self._seen[:2]:
            self._seen = (self.up, self.down, now)
        return now - self._seen[2]

    def is_stale(self, now: float, idle_timeout: float) -> bool:
        """Whether it has been silent for too long; before it opens, its set-up has a clock."""
        if not self._opened:
            return False
        origin = self.origin
        done = origin is None or origin.eof or self.client.transport is None
        allowed = min(HALF_CLOSED_SILENCE, idle_timeout) if done else idle_timeout
        return self.silent_for(now) > allowed

    def _record(self, reason: str, **details: str | int) -> None:
        bound, rule = self.bound, self.bound.decision.rule
        extra = (("port", bound.port), *details.items())
        self.state.record(
            Event(EventKind.CONNECT, Verdict.ALLOW, reason, rule, bound.host.name, extra)
        )
