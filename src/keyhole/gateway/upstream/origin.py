"""A connection to an origin over verified TLS, used for one request at a time and kept for more.

Made by `reach.py` for a judged address. The HTTP machine reads responses strictly and hands them to
the stream whose request this is; bytes that come when no stream waits end the connection.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.gateway.tls import HTTP2
from keyhole.gateway.upstream.http2 import Http2Origin, OriginStream
from keyhole.http.client import Http1Client, ResponseReceiver
from keyhole.http.states import State
from keyhole.model.decision import AddressDecision, Reason
from keyhole.model.errors import Malformed, OverLimit, UpstreamFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from keyhole.gateway.channel_user import ChannelUser
    from keyhole.gateway.tls import OriginChannel
    from keyhole.gateway.turn import Turn
    from keyhole.http.field import Field, Memo
    from keyhole.http.request import OutboundHead
    from keyhole.inject.response_fields import ResponseFields
    from keyhole.model.decision import Decision
    from keyhole.model.host import Host


class Origin(Struct, frozen=True):
    """A server that requests are sent to, and what is remembered of its responses."""

    host: Host
    port: int
    known_lines: Memo
    fields: ResponseFields | None = None
    """The fields of its responses that are passed on; None: all."""


class OriginUser(ResponseReceiver, Protocol):
    """A stream that waits for a response: a client's, or a question of the gateway's own."""

    def response_flush(self) -> None:
        """All that came in one read was handed over."""

    def protocol_ended(self) -> None:
        """The protocol that was switched to has ended properly."""

    def origin_lost(self, *, stale: bool, unread: bool = False) -> None:
        """The connection is gone before the response was whole. `stale`: it was a kept connection,
        and no byte came, so the origin had closed it before the request was sent. `unread`: the
        origin has said that it did not read the request."""

    def origin_caught_up(self) -> None:
        """The origin accepts more bytes."""

    def fail(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """The response is not HTTP."""

    def over_limit(self, decision: Decision) -> None:
        """A limit on bytes is reached."""


class OriginConnection:
    """One connection."""

    __slots__ = (
        "_origin", "_ready", "_touched", "_used", "address", "channel", "idle_since", "machine",
        "shared", "stream", "user",
    )  # fmt: skip

    may_leave_unread = False
    """Whether the origin can say that it has not read a request."""

    def __init__(
        self,
        origin: Origin,
        open_channel: Callable[[ChannelUser], OriginChannel],
        ready: asyncio.Future[None] | None,
    ) -> None:
        """`ready` is called when the handshake is done, or with its error."""
        self.channel = open_channel(self)
        self.shared: Http2Origin | None = None
        """The HTTP/2 connection that has taken this one's place, if the origin speaks it."""
        self.machine = Http1Client(origin.known_lines, origin.fields)
        self._origin = origin
        self.address = AddressDecision()
        """The judged address that it was dialled by."""
        self.user: OriginUser | None = None
        self.stream = 0
        self.idle_since = 0.0
        self._used = False
        """Whether it has served a request before the present one."""
        self._touched = False
        """Whether a byte of the present response has come."""
        self._ready = ready

    # ── for the stream ────────────────────────────────────────────────────────────────────────────

    @property
    def slow(self) -> bool:
        """Whether the origin takes the request slower than it comes."""
        return self.channel.slow

    def is_free(self) -> bool:
        """Whether a kept connection can take a request. Not after unrequested bytes have come.

        They are read in the session's next turn, which aborts the connection; a request that
        went out before that would take them for its response.
        """
        return self.channel.is_quiet()

    def send_request(self, head: OutboundHead, user: OriginUser, turn: Turn) -> None:
        """Begin a request; its response goes to `user`. It leaves with the next flush."""
        channel = self.channel
        self.user = user
        self._touched = False
        channel.turn = turn
        channel.careful = True
        self.stream, message = self.machine.send_request(head, user)
        channel.queue(message)

    def send_data(self, data: bytes | memoryview) -> None:
        """Bytes of the request's body; they leave with the next flush."""
        self.channel.queue(self.machine.send_data(self.stream, data))

    def expect_trailers(self) -> None:
        """Nothing can follow a body with a length (RFC 9112 §6.3): they are dropped."""

    def end_request(self, trailers: Sequence[Field] = ()) -> None:
        """The request's body is whole."""
        last = self.machine.end_request(self.stream, trailers)
        if last:
            self.channel.queue(last)

    def flush(self) -> None:
        """Send what was queued."""
        self.channel.flush()

    def pause(self) -> None:
        """Stop reading for now: the client is slow."""
        self.channel.pause()

    def resume(self) -> None:
        """Read again."""
        self.channel.resume()

    def release(self) -> OriginConnection | None:
        """The stream has ended. Returns the connection if it can take another request."""
        self.user = None
        self._used = True
        return self if self.machine.next() else None

    def close(self) -> None:
        """End TLS and close, without waiting: unsent bytes are of no use."""
        if self.channel.unsent:
            self.channel.abort()
        else:
            self.channel.close()

    def abort(self) -> None:
        """Reset now."""
        self.channel.abort()

    def drop(self) -> None:
        """End it in the middle of a request."""
        self.release()
        self.abort()

    # ── the channel's calls ───────────────────────────────────────────────────────────────────────

    def secured(self) -> None:
        """The origin's certificate was verified."""
        if self.channel.protocol == HTTP2:
            self.shared = self.channel.user = Http2Origin(self._origin, self.channel)
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def insecure(self, error: ssl.SSLError) -> None:
        """It was not verified: the stream fails with the reason."""
        self._refuse(error)
        self.channel.abort()

    def _refuse(self, error: ssl.SSLError | None) -> None:
        ready, self._ready = self._ready, None
        if ready is None or ready.done():
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"the origin's certificate is not accepted: {error.verify_message}"
            ready.set_exception(UpstreamFailed(Reason.UPSTREAM_CERTIFICATE, why))
            return
        what = "the connection was closed" if error is None else error.reason or "an error"
        ready.set_exception(
            UpstreamFailed(Reason.UPSTREAM_TLS, f"TLS with the origin failed: {what}")
        )

    def unsecured(self, view: memoryview) -> None:
        """Ignore bytes that arrive after TLS was ended here."""

    def received(self, view: memoryview) -> None:
        """Bytes of a response."""
        user, channel, machine = self.user, self.channel, self.machine
        if user is None:
            # Attack: unrequested bytes would be read as the next request's response.
            channel.abort()
            return
        self._touched = True
        try:
            machine.receive(view)
        except Malformed as error:
            user.fail(Reason.UPSTREAM_MALFORMED, error.why)
            return
        except OverLimit as error:
            user.over_limit(error.decision)
            return
        if channel.careful and machine.head is not None:
            # Attack: a response in which one byte decodes to hundreds stalls the loop (I12).
            channel.careful = bool(machine.head.encoding or machine.head.message_encoding)
        user.response_flush()

    def ended(self) -> None:
        """TLS ended properly, which ends a body without a length."""
        user, machine = self.user, self.machine
        self.channel.close()
        if user is None:
            return
        try:
            whole = machine.receive_end()
        except OverLimit as error:
            user.over_limit(error.decision)
            return
        if not whole:
            self._lose(user)
        elif machine.response is State.SWITCHED:
            user.protocol_ended()
        else:
            user.response_flush()

    def broken(self) -> None:
        """The connection was reset; a server that refuses a body and closes has often sent a
        response before."""
        if self.user is not None:
            self.channel.read_rest()

    def lost(self, exc: Exception | None) -> None:
        """The connection has ended: the waiting stream fails."""
        self._refuse(None)
        if self.user is not None:
            self._lose(self.user)

    def _lose(self, user: OriginUser) -> None:
        stale = self._used and not self._touched
        self.release()
        user.origin_lost(stale=stale)

    def caught_up(self) -> None:
        """The origin can take more bytes."""
        if self.user is not None:
            self.user.origin_caught_up()


AnyOriginConnection = OriginConnection | OriginStream
"""The upstream connection of a request, or its stream on a shared one."""
