"""A client's connection to an inspected host: its hello, TLS, and its end.

Made by the door for a host of a service. The hello is judged in the clear before TLS begins, as for
a tunnel. TLS agrees on the version of HTTP; from then on `http1.py` or `http2.py` serves the
requests, and the channel's calls go there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import refusal_messages
from keyhole.gateway.hello import HelloJudge
from keyhole.gateway.http.http1 import Http1Connection
from keyhole.gateway.http.http2 import Http2Connection
from keyhole.gateway.http.states import LIFE, Life, move
from keyhole.gateway.tls import HTTP1, HTTP2, PROTOCOLS
from keyhole.gateway.upstream.reach import reach
from keyhole.model.decision import Reason, Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from keyhole.gateway.channel_user import ChannelUser
    from keyhole.gateway.context import Destination, DoorContext
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.gateway.http.http_connection import HttpConnection
    from keyhole.gateway.session import SessionState
    from keyhole.gateway.tls import ClientChannel
    from keyhole.gateway.upstream.http2 import Http2Origin
    from keyhole.gateway.upstream.origin import Origin, OriginConnection

HELLO_TIMEOUT = 10.0
"""Seconds from the connection to the end of the handshake."""

LINGER = 2.0
"""Seconds for a client to read our last bytes after they were sent."""

CLOSED = "closed"

_LEFT: dict[str, str] = {
    Reason.IDLE: Reason.CLIENT_SILENT,
    Reason.POLICY_CHANGED: Reason.POLICY_CHANGED,
}
"""The recorded reason of a connection that ends before it is open, unless the client left."""

_DISTRUST = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE")
"""Alerts by which a client rejects our certificate."""


class ClientConnection:
    """One connection, from its first byte to its closing event."""

    __slots__ = (
        "_began", "_dials", "_ended", "_find_host", "_hello", "_linger", "_since", "channel",
        "destination", "host", "http", "life", "loop", "name", "shared", "state",
    )  # fmt: skip

    def __init__(
        self,
        shared: DoorContext,
        dials: asyncio.Semaphore,
        state: SessionState,
        destination: Destination,
        find_host: Callable[[Destination], InspectedHost],
        open_channel: Callable[[ChannelUser], ClientChannel],
        ended: Callable[[ClientConnection], None],
    ) -> None:
        """`find_host` returns the host under the policy in force."""
        self.shared = shared
        self.loop = shared.loop
        self.state = state
        self.destination = destination
        self.name = destination.host.name
        self.host = find_host(destination)
        self.life = Life.HELLO
        self.channel = open_channel(self)
        self.channel.turn = state.turn
        self._dials = dials
        self.http: HttpConnection | None = None
        """Serves the requests, once TLS is there."""
        self._began = self._since = self.loop.time()
        self._find_host = find_host
        self._ended: Callable[[ClientConnection], None] | None = ended
        self._hello: HelloJudge | None = HelloJudge(destination.host)
        self._linger: asyncio.TimerHandle | None = None

    def _move(self, life: Life) -> None:
        self.life = move(LIFE, self.life, life)

    # ── TLS ───────────────────────────────────────────────────────────────────────────────────────

    def unsecured(self, view: memoryview) -> None:
        """Bytes of the hello, which is judged in the clear."""
        if self._hello is None or self.life is not Life.HELLO:
            return
        # One name for DNS, for the connected address and for TLS (I4).
        decision = self._hello.feed(bytes(view))
        if decision is None:
            return
        hello, offered, self._hello = self._hello.data, self._hello.offered, None
        if not decision.allowed:
            self._refuse_hello(decision.reason, self.destination.decision.rule)
            return
        # Without ALPN a client speaks HTTP/1.1. It can read a refusal of its request, which says
        # more than an alert.
        if offered and not self.host.takes([each.decode("latin-1") for each in offered]):
            self._refuse_hello(Reason.HTTP_VERSION, self.host.http_rule)
            return
        self._move(Life.SECURING)
        leaf = self.host.interception.leaf(self.destination.host)
        self.channel.begin(leaf, self.host.protocols, early=hello)

    def _refuse_hello(self, reason: str, rule: str) -> None:
        self.state.refused_as(reason, rule, self.name, self.destination.port)
        if reason != Reason.NOT_TLS:
            self.channel.write_plain(refusal_messages.alert(reason))
        self.leave()

    def secured(self) -> None:
        """The client accepts our certificate."""
        self._move(Life.OPEN)
        self._record(self.destination.decision.reason)
        serves = Http2Connection if self.channel.protocol == HTTP2 else Http1Connection
        self.http = self.channel.user = serves(self)

    def insecure(self, error: ssl.SSLError) -> None:
        """The client rejects our certificate, or cannot speak TLS with us."""
        distrusts = any(word in (error.reason or "") for word in _DISTRUST)
        self._refuse_handshake(Reason.CLIENT_DISTRUSTS if distrusts else Reason.CLIENT_TLS)
        self.leave()

    def _refuse_handshake(self, reason: str) -> None:
        self._record(reason)
        self.state.tell(self.name, self.destination.port, reason)

    def received(self, view: memoryview) -> None:
        """Not called: nothing arrives before TLS is ready."""

    def caught_up(self) -> None:
        """The client can take more bytes."""

    async def dial(
        self, host: InspectedHost, origin: Origin, *, http1: bool = False
    ) -> OriginConnection | Http2Origin:
        """With `http1`, HTTP/2 is not offered. Raises UpstreamFailed."""
        async with self._dials:
            book = self.state.session.book
            trust = host.interception.trust
            protocols = (HTTP1,) if http1 else PROTOCOLS
            return await reach(self.loop, self.shared.upstream, book, trust, origin, protocols)

    # ── for the door ──────────────────────────────────────────────────────────────────────────────

    def change(self, destination: Destination) -> None:
        """The policy has changed, and grants the host by this decision. The next request is judged
        by it; one under way goes on if it is allowed. A connection of a version of HTTP that the
        policy no longer permits ends, and its client makes another."""
        self.destination = destination
        before, self.host = self.host, self._find_host(destination)
        if self.http is None:
            stays = self.life is not Life.SECURING or self.host.protocols == before.protocols
        else:
            stays = self.host.takes((self.http.protocol,))
        if not stays:
            self.cut(Reason.POLICY_CHANGED)
        elif self.http is not None:
            self.http.change(self.host)

    def freeze(self) -> None:
        """The session is frozen: no further request is read, and those under way are cut. Without
        one, the client may still read our last bytes, which say why."""
        if self.life is Life.LEAVING:
            return
        if self.http is not None and not self.http.is_busy:
            self.leave()
        else:
            self.cut(Reason.FROZEN)

    def sweep(self, now: float, idle_timeout: float) -> None:
        """End streams or the connection when they are silent for too long or move too slowly
        (I9)."""
        if self.life is Life.OPEN and self.http is not None:
            self.http.sweep(now, idle_timeout)
        elif self.life is Life.LEAVING:
            # It has its own timeout, which is extended for a client that is still reading.
            if now - self._since > idle_timeout:
                self.cut(Reason.IDLE)
            elif self.http is not None:
                self.http.end_if_slow(now)
        elif now - self._began > HELLO_TIMEOUT:
            self.cut(Reason.IDLE)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def leave(self) -> None:
        """Close in a way that lets the client read our last bytes first."""
        self._move(Life.LEAVING)
        if self.http is not None:
            self.http.close()
        self._since = self.loop.time()
        self.channel.part()
        self.channel.resume()
        if self._linger is None:
            self._linger = self.loop.call_later(LINGER, self._lingered)

    def _lingered(self) -> None:
        """Close, unless the end of a response is still being sent to a slow client."""
        self._linger = None
        transport = self.channel.transport
        if transport is None:
            return
        if transport.get_write_buffer_size():
            self._linger = self.loop.call_later(LINGER, self._lingered)
            return
        # Without a reset: bytes that the kernel has not delivered yet, it still delivers.
        transport.abort()

    def ended(self) -> None:
        """The client has ended TLS."""
        self.channel.close()

    def broken(self) -> None:
        """The client has reset the connection; `lost` follows."""

    def lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if self.life is Life.SECURING:
            # Some clients close where others send an alert.
            self._refuse_handshake(Reason.CLIENT_DISTRUSTS)
            self._move(Life.LEAVING)
        self._finish(CLOSED if exc is None else "client-reset")

    def cut(self, why: str) -> None:
        """End now, by reset."""
        self.channel.abort()
        self._finish(why)

    def _finish(self, why: str) -> None:
        """Record the totals, once, and leave the session."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        http, self.http = self.http, None
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if http is not None:
            http.drop_streams()
            took = round((self.loop.time() - self._began) * 1000)
            totals = {"requests": http.requests, "up": http.up, "down": http.down}
            self._record(CLOSED, **totals, ms=took, end=why)
            http.close()
        elif self.life in (Life.HELLO, Life.SECURING):
            details = (("port", self.destination.port),)
            left = _LEFT.get(why, Reason.CLIENT_LEFT)
            self.state.record(
                Event(EventKind.CONNECT, Verdict.DENY, left, host=self.name, details=details)
            )
        self._move(Life.GONE)
        ended(self)

    def _record(self, reason: str, **details: str | int) -> None:
        destination = self.destination
        extra = (("port", destination.port), *details.items())
        rule = destination.decision.rule
        self.state.record(Event(EventKind.CONNECT, Verdict.ALLOW, reason, rule, self.name, extra))
