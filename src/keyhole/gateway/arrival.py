"""How the client's end of an inspected connection comes and goes: hello, TLS, the last words.

`inspected.py` builds on it and reads requests. The hello is judged in the clear before TLS begins,
as for a tunnel; what a connection moved is written down once, when it ends.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.gate import judge_hello
from keyhole.gateway.session import OverLimit
from keyhole.gateway.tlsside import TlsSide
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.wire.clienthello import HelloReader, Malformed, NeedMore, NotTls

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from keyhole.gateway.session import Interception, SessionState
    from keyhole.gateway.tunnel import Bound
    from keyhole.model.host import Host
    from keyhole.policy.budget import Meter

HELLO_TIMEOUT = 10.0
"""Seconds from the connection to the end of the handshake."""

HEAD_TIMEOUT = 20.0
"""Seconds for a request's head once its first byte has come."""

KEEP_ALIVE = 120.0
"""Seconds between two requests of a connection."""

LINGER = 2.0
"""Seconds that a client still has, once our last words have left, to read them."""

CLOSED = "closed"

_LEFT = {
    refusal.IDLE: refusal.CLIENT_SILENT,
    refusal.POLICY_CHANGED: refusal.POLICY_CHANGED,
}
"""Of a connection that ends before it is open: what is written down, unless the client left."""

_DISTRUST = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE")
"""Alerts by which a client says that it does not accept our certificate."""


class Phase(enum.Enum):
    """What the client's next bytes are."""

    HELLO = 0
    SECURING = 1
    HEAD = 2
    GATHER = 3
    """A body that must be whole before its head can be signed."""
    BODY = 4
    WAIT = 5
    """Nothing to be read yet: they are held."""
    RELAY = 6
    OVER = 7


class Arrival(TlsSide):
    """One connection from its first byte to its closing event."""

    __slots__ = (
        "_began", "_bound", "_down", "_ended", "_held", "_hello", "_leaf", "_linger", "_loop",
        "_meter", "_opened", "_phase", "_requests", "_seen", "_since", "_state", "_up", "host",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        bound: Bound,
        leaf: Callable[[Host], ssl.SSLContext],
        ended: Callable[[Arrival], None],
    ) -> None:
        super().__init__()
        self.host = bound.host.name
        self._loop = loop
        self._state = state
        self.turn = state.turn
        self._bound = bound
        self._leaf = leaf
        self._ended: Callable[[Arrival], None] | None = ended
        self._phase = Phase.HELLO
        self._hello: HelloReader | None = HelloReader()
        self._held = b""
        self._linger: asyncio.TimerHandle | None = None
        self._meter: Meter | None = None
        """Of the service that the present request is for, where it has bounds of its own."""
        self._opened = False
        self._requests = 0
        self._up = 0
        self._down = 0
        self._began = self._since = loop.time()
        self._seen = (0, 0, self._began)

    @property
    def bound(self) -> Bound:
        """Where it goes, and what allows it."""
        return self._bound

    # ── coming ────────────────────────────────────────────────────────────────────────────────────

    def unsecured(self, view: memoryview) -> None:
        """Bytes of the hello, which is judged in the clear."""
        if self._hello is None or self._phase is not Phase.HELLO:
            return
        data = bytes(view)
        self._held += data
        found = self._hello.feed(data)
        if isinstance(found, NeedMore):
            return
        if isinstance(found, NotTls):
            reason: str | None = refusal.NOT_TLS
        elif isinstance(found, Malformed):
            reason = refusal.HELLO_MALFORMED
        else:
            # The name asked for in DNS, connected to and spoken to in TLS is one (I4).
            reason = judge_hello(found, self._bound.host)
        hello, self._held, self._hello = self._held, b"", None
        if reason is not None:
            self._turn_away(reason)
            return
        self._phase = Phase.SECURING
        self.begin(self._leaf(self._bound.host), early=hello)

    def _turn_away(self, reason: str) -> None:
        bound = self._bound
        self._state.refused_as(reason, bound.decision.rule, bound.host.name, bound.port)
        self._phase = Phase.OVER
        if reason != refusal.NOT_TLS and self.transport is not None:
            self.transport.write(refusal.alert(reason))
        self._leave()

    def secured(self) -> None:
        """The client accepts our certificate."""
        self._phase = Phase.HEAD
        self._since = self._loop.time()
        self._opened = True
        self._record(self._bound.decision.reason)

    def insecure(self, error: ssl.SSLError) -> None:
        """It does not, or cannot."""
        distrusts = any(word in (error.reason or "") for word in _DISTRUST)
        self._refuse_handshake(refusal.CLIENT_DISTRUSTS if distrusts else refusal.CLIENT_TLS)
        self._leave()

    def _refuse_handshake(self, reason: str) -> None:
        self._phase = Phase.OVER
        self._record(reason)
        self._state.tell(self.host, self._bound.port, reason)

    # ── going ─────────────────────────────────────────────────────────────────────────────────────

    def _leave(self) -> None:
        """Close in a way that lets the client read our last words first."""
        self._phase = Phase.OVER
        self._held = b""
        self._since = self._loop.time()
        self.part()
        self.resume()
        if self._linger is None:
            self._linger = self._loop.call_later(LINGER, self._lingered)

    def _lingered(self) -> None:
        """Go, unless a slow client is still being sent the end of an answer."""
        self._linger = None
        transport = self.transport
        if transport is None:
            return
        if transport.get_write_buffer_size():
            self._linger = self._loop.call_later(LINGER, self._lingered)
            return
        # Without a reset: what the kernel has not delivered yet, it still delivers.
        transport.abort()

    def ended(self) -> None:
        """The client has said its last."""
        self.close()

    def lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        if self._phase is Phase.SECURING:
            # Some clients close where others send an alert.
            self._refuse_handshake(refusal.CLIENT_DISTRUSTS)
        self._finish(CLOSED if exc is None else "client-reset")

    def cut(self, why: str) -> None:
        """End now, by reset."""
        self.abort()
        self._finish(why)

    def is_stale(self, now: float, idle_timeout: float) -> bool:
        """Whether it has been silent for too long, in whatever it is doing."""
        match self._phase:
            case Phase.HELLO | Phase.SECURING:
                return now - self._began > HELLO_TIMEOUT
            case Phase.HEAD:
                return now - self._since > (HEAD_TIMEOUT if self._held else KEEP_ALIVE)
            case Phase.OVER:
                # Has a clock of its own, which waits for who reads on.
                return now - self._since > idle_timeout
            case _:
                if (self._up, self._down) != self._seen[:2]:
                    self._seen = (self._up, self._down, now)
                return now - max(self._seen[2], self._since) > idle_timeout

    def change(self, bound: Bound, interception: Interception) -> None:
        """The policy has changed, and still grants the host: by this decision."""
        self._bound = bound
        self._leaf = interception.leaf

    def end_if_slow(self, now: float) -> None:
        """End it when whoever is waited for moves too little; asked by the sweep."""

    def _finish(self, why: str) -> None:
        """Write the totals down, once, and leave the session."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        self._forsake()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if self._opened:
            took = round((self._loop.time() - self._began) * 1000)
            totals = {"requests": self._requests, "up": self._up, "down": self._down}
            self._record(CLOSED, **totals, ms=took, end=why)
        elif self._phase in (Phase.HELLO, Phase.SECURING):
            details = (("port", self._bound.port),)
            left = _LEFT.get(why, refusal.CLIENT_LEFT)
            self.note(Event(EventKind.CONNECT, Verdict.DENY, left, host=self.host, details=details))
        self._phase = Phase.OVER
        self._held = b""
        ended(self)

    def _forsake(self, reason: str = "") -> None:
        """Let go of what a request in flight holds; called once."""

    # ── what is counted and written down ──────────────────────────────────────────────────────────

    def count_up(self, amount: int) -> None:
        """Count bytes sent. Raises OverLimit."""
        over = self._state.count_up(amount)
        if over is None and self._meter is not None:
            over = self._meter.count_up(amount)
        if over is not None:
            raise OverLimit(over)
        self._up += amount

    def count_down(self, amount: int) -> None:
        """Count bytes received. Raises OverLimit."""
        over = self._state.count_down(amount)
        if over is None and self._meter is not None:
            over = self._meter.count_down(amount)
        if over is not None:
            raise OverLimit(over)
        self._down += amount

    def note(self, event: Event) -> None:
        """Write an event down."""
        self._state.record(event)

    def _record(self, reason: str, **details: str | int) -> None:
        bound = self._bound
        extra = (("port", bound.port), *details.items())
        rule = bound.decision.rule
        self.note(Event(EventKind.CONNECT, Verdict.ALLOW, reason, rule, self.host, extra))
