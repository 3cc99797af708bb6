"""The HTTP side of a client's connection: what HTTP/1.1 and HTTP/2 have in common.

`http1.py` and `http2.py` implement it, one object for each connection. A `Stream` makes only the
calls that are declared here, so a request is handled in the same way over both versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from keyhole.gateway.channel_user import SecuredUser
from keyhole.model.errors import OverLimit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from keyhole.gateway.context import Destination
    from keyhole.gateway.http.connection import ClientConnection
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.gateway.http.stream import Stream
    from keyhole.http.http2_server import Http2Server
    from keyhole.http.response import Reply
    from keyhole.http.server import Http1Server
    from keyhole.model.event import Event
    from keyhole.policy.budget import Meter

CONTINUE = b"HTTP/1.1 100 Continue\r\n"


class HttpConnection(SecuredUser, ABC):
    """The requests of one connection, whatever the version of HTTP."""

    __slots__ = (
        "channel", "client", "down", "host", "loop", "machine", "name", "requests", "shared",
        "state", "up",
    )  # fmt: skip

    protocol: str
    """Its version of HTTP, by its name in ALPN."""

    machine: Http1Server | Http2Server
    """Writes responses, by the number of their stream."""

    success_switches = False
    """Whether a client that asked for a WebSocket takes every success for one (RFC 8441 §5)."""

    def __init__(self, client: ClientConnection) -> None:
        self.client = client
        self.shared = client.shared
        self.loop = client.loop
        self.state = client.state
        self.channel = client.channel
        self.name = client.name
        self.host = client.host
        self.up = 0
        self.down = 0
        self.requests = 0

    @property
    def destination(self) -> Destination:
        """The client's destination, and the decision on it."""
        return self.client.destination

    # ── the channel's calls that are the connection's ─────────────────────────────────────────────

    def ended(self) -> None:
        """The client has ended TLS."""
        self.client.ended()

    def lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self.client.lost(exc)

    @abstractmethod
    def received(self, view: memoryview) -> None:
        """Plain bytes of the client."""

    @abstractmethod
    def caught_up(self) -> None:
        """The client can take more bytes."""

    # ── for the connection ────────────────────────────────────────────────────────────────────────

    def change(self, host: InspectedHost) -> None:
        """Another policy is in force."""
        self.host = host
        self.machine.read_by(host.authorizer.reader)

    @abstractmethod
    def sweep(self, now: float, idle_timeout: float) -> None:
        """End streams or the connection when they are silent for too long or move too slowly
        (I9)."""

    @abstractmethod
    def end_if_slow(self, now: float) -> None:
        """End streams that move too slowly."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a request is under way."""

    @abstractmethod
    def drop_streams(self) -> None:
        """Abandon requests under way: their client has gone."""

    def close(self) -> None:
        """Stop reading."""
        self.machine.close()

    # ── for a stream ──────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """The loop's clock."""
        return self.loop.time()

    @abstractmethod
    def hold(self, stream: Stream) -> None:
        """Stop reading this request: later bytes wait."""

    @abstractmethod
    def resuming(self, stream: Stream) -> AbstractContextManager[None]:
        """Run the block that a stream waited for, then process the bytes that arrived meanwhile."""

    @abstractmethod
    def slow_down(self, stream: Stream) -> None:
        """The origin takes the request slower than it comes."""

    @abstractmethod
    def read_on(self, stream: Stream) -> None:
        """The origin can take more of the request."""

    @abstractmethod
    def is_slow(self, stream: Stream) -> bool:
        """Whether the client takes the response slower than it comes."""

    @abstractmethod
    def wire_size(self, stream: Stream) -> int:
        """Bytes that the request's body has had so far, its framing included."""

    def may_have_trailers(self, stream: Stream) -> bool:
        """Whether fields may follow a request's body that has all the bytes it announced."""
        return False

    @abstractmethod
    def progress(self, stream: Stream) -> None:
        """The origin has taken a part of a push that waits here."""

    @abstractmethod
    def reply(self, stream: Stream, reply: Reply, *, close: bool) -> None:
        """Answer a request without an origin."""

    @abstractmethod
    def finished(self, stream: Stream, now: float) -> None:
        """The response is complete."""

    @abstractmethod
    def end_relay(self, stream: Stream) -> None:
        """The origin has ended a WebSocket properly."""

    @abstractmethod
    def cut(self, stream: Stream | None, reason: str) -> None:
        """End a stream that has begun, so that it does not look complete."""

    def send_continue(self, stream: Stream) -> None:
        """Tell the client to send its body."""
        self.channel.send(self.machine.send_interim(stream.number, CONTINUE))

    # ── counted and written down ──────────────────────────────────────────────────────────────────

    def count_up(self, amount: int, meter: Meter | None = None) -> None:
        """Count bytes sent. Raises OverLimit."""
        over = self.state.count_up(amount)
        if over is None and meter is not None:
            over = meter.count_up(amount)
        if over is not None:
            raise OverLimit(over)
        self.up += amount

    def count_refused(self, size: int) -> None:
        """Count a request that cannot be read, and the bytes of its head. Raises OverLimit."""
        self.requests += 1
        self.state.requested += 1
        self.count_up(size)

    def count_down(self, amount: int, meter: Meter | None = None) -> None:
        """Count bytes received. Raises OverLimit."""
        over = self.state.count_down(amount)
        if over is None and meter is not None:
            over = meter.count_down(amount)
        if over is not None:
            raise OverLimit(over)
        self.down += amount

    def note(self, event: Event) -> None:
        """Record an event."""
        self.state.record(event)
