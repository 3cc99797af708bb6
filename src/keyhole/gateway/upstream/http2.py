"""A connection to an origin that speaks HTTP/2, shared by the streams of one service.

Made by `origin.py` when TLS has agreed on it. A request uses it through an `OriginStream`, which
has the calls of an `OriginConnection` and ends alone when it is reset. A connection serves one
session and one service, as those of HTTP/1.1 do: credentials of two accounts never share one (I4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.channel_user import SecuredUser
from keyhole.http.frames import ConnectionFault
from keyhole.http.http2_client import Http2Client
from keyhole.model.decision import AddressDecision, Reason
from keyhole.model.errors import OverLimit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.gateway.tls import OriginChannel
    from keyhole.gateway.turn import Turn
    from keyhole.gateway.upstream.origin import Origin, OriginUser
    from keyhole.http.field import Field
    from keyhole.http.request import OutboundHead
    from keyhole.http.response import ResponseHead


class Http2Origin(SecuredUser):
    """One connection."""

    __slots__ = (
        "_careful", "_ended", "_last", "_lost", "_streams", "_touched", "_unsent", "_used",
        "address", "channel", "idle_since", "machine",
    )  # fmt: skip

    def __init__(self, origin: Origin, channel: OriginChannel) -> None:
        self.channel = channel
        self.machine = Http2Client(origin.known_lines, origin.fields)
        self.address = AddressDecision()
        """The judged address that it was dialled by."""
        self.idle_since = 0.0
        """When a sweep first saw it without a stream, or without progress; 0 before that."""
        self._unsent = 0
        self._streams: set[OriginStream] = set()
        self._touched: dict[OriginStream, None] = {}
        """Streams that a part of a response has come for, in this read."""
        self._careful = 0
        """Streams whose response may grow when it is decoded, or has not begun."""
        self._used = False
        self._last = False
        """Whether it takes no further stream."""
        self._ended = False
        """Whether the origin sends nothing more."""
        self._lost = False
        channel.send(self.machine.take())

    # ── for the pool ──────────────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        """Whether a stream is open."""
        return bool(self._streams)

    def alive(self) -> bool:
        """Whether another request can be sent."""
        channel = self.channel
        return (
            not (self._last or self._ended or channel.slow)
            and channel.is_open()
            and self.machine.open_to_requests
        )

    def open_stream(self) -> OriginStream:
        """A stream for one request."""
        return OriginStream(self)

    def open_last_stream(self) -> OriginStream:
        """A stream for one request, with which the connection ends."""
        self._last = True
        return OriginStream(self)

    @property
    def closed(self) -> bool:
        """Whether it serves no request any more."""
        return self.machine.closed or not self.channel.is_open()

    def sweep(self, now: float, most_idle: float) -> None:
        """Some time has passed: close it if it has been idle for too long."""
        self.machine.refill()
        unsent, self._unsent = self._unsent, self.channel.unsent
        waits = self._streams and not (self.channel.slow and self._unsent >= unsent)
        if waits or not self.idle_since:
            self.idle_since = now
        elif now - self.idle_since > most_idle:
            # It has served nothing, or the origin has read nothing: heads would pile up for it
            # (I9).
            if self.channel.slow:
                self.channel.abort()
            else:
                self.close()

    def retire(self) -> None:
        """Take no further request; the streams that are open may end."""
        if not self._streams:
            self.close()
        else:
            self._say(self.machine.leave())

    def close(self) -> None:
        """Say goodbye. Streams that are open end with it."""
        self._say(self.machine.leave())
        self.machine.close()
        self.channel.close()

    def abort(self) -> None:
        """Reset now."""
        self.machine.close()
        self.channel.abort()

    # ── for a stream ──────────────────────────────────────────────────────────────────────────────

    def attach(self, stream: OriginStream, turn: Turn) -> None:
        """A request begins on this stream."""
        self._streams.add(stream)
        self._be_careful(1)
        self.channel.turn = turn

    def detach(self, stream: OriginStream) -> None:
        """A stream is over; it is reset where the origin has not ended it."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._touched.pop(stream, None)
            self._used = True
            self.idle_since = 0.0
            self.trust(stream)
            self._say(self.machine.reset(stream.number))
        machine = self.machine
        if not self._streams and (self._last or machine.peer_going or machine.going):
            self.close()

    def _say(self, message: bytes) -> None:
        """Send this after what was queued: the head of a stream must come before its reset."""
        if message and self.channel.is_open():
            self.channel.queue(message)
            self.channel.flush()

    def touch(self, stream: OriginStream) -> None:
        """Something came for a stream: its client is sent what was queued after this read."""
        self._touched[stream] = None

    def trust(self, stream: OriginStream) -> None:
        """A response is not encoded, or is over."""
        if stream.careful:
            stream.careful = False
            self._be_careful(-1)

    def _be_careful(self, change: int) -> None:
        # Attack: a response in which one byte decodes to hundreds stalls the loop (I12).
        self._careful += change
        self.channel.careful = self._careful > 0

    @property
    def used(self) -> bool:
        """Whether it has served a request."""
        return self._used

    def after_reading(self) -> None:
        """Send the machine's own frames, and flush the responses of this read to their clients."""
        channel, machine = self.channel, self.machine
        self._say(machine.take())
        touched, self._touched = self._touched, {}
        for stream in touched:
            if stream.user is not None:
                stream.user.response_flush()
        if machine.behind:
            channel.pause()
            channel.turn.later(self._read_on)
        elif self._lost:
            self._lose_rest()
        elif self._ended:
            channel.close()

    def _read_on(self) -> None:
        """Go on with frames that came together with many others."""
        if not self.machine.closed:
            self.channel.resume()
            try:
                self.machine.read_on()
            except ConnectionFault as fault:
                self._fail(fault)
                return
            self.after_reading()

    # ── the channel's calls ───────────────────────────────────────────────────────────────────────

    def received(self, view: memoryview) -> None:
        """Frames of the origin."""
        try:
            self.machine.receive(view)
        except ConnectionFault as fault:
            self._fail(fault)
            return
        self.after_reading()

    def _fail(self, fault: ConnectionFault) -> None:
        self.channel.send(self.machine.fail(fault))
        self._lose_all(fault.why)
        self.channel.close()

    def _lose_all(self, why: str) -> None:
        streams, self._streams = self._streams, set()
        self._touched.clear()
        for stream in streams:
            user, stream.user = stream.user, None
            if user is not None:
                user.fail(Reason.UPSTREAM_MALFORMED, why)

    def _lose_rest(self) -> None:
        """Fail the streams whose response is not whole. One that is whole may wait for a slow
        client."""
        for stream in list(self._streams):
            if not self.machine.is_whole(stream.number):
                user, stream.user = stream.user, None
                self._streams.discard(stream)
                if user is not None:
                    user.origin_lost(stale=self._used and not stream.touched)
        if not self._streams:
            self.machine.close()

    def ended(self) -> None:
        """The origin has ended TLS; frames that came before may still have to be read."""
        self._ended = True
        if not self.machine.behind:
            self.channel.close()

    def lost(self, exc: Exception | None) -> None:
        """The connection is gone: streams fail, once the bytes that came before were read."""
        self._lost = True
        if not self.machine.behind:
            self._lose_rest()

    def broken(self) -> None:
        """Reset; responses may have come before."""
        if self._streams:
            self.channel.read_rest()

    def caught_up(self) -> None:
        """The origin can take more bytes."""
        for stream in list(self._streams):
            if stream.user is not None and not self.machine.is_slow(stream.number):
                stream.user.origin_caught_up()


class OriginStream:
    """One request on such a connection."""

    __slots__ = ("_connection", "careful", "number", "touched", "user")

    may_leave_unread = True
    """Whether the origin can say that it has not read a request (RFC 9113 §8.7)."""

    def __init__(self, connection: Http2Origin) -> None:
        self._connection = connection
        self.number = 0
        self.user: OriginUser | None = None
        self.touched = False
        """Whether a byte of the response has come."""
        self.careful = True
        """Whether its response may grow when it is decoded."""

    @property
    def address(self) -> AddressDecision:
        """The judged address of the connection."""
        return self._connection.address

    @property
    def slow(self) -> bool:
        """Whether the origin takes the request slower than it comes."""
        connection = self._connection
        return connection.channel.slow or connection.machine.is_slow(self.number)

    # ── for the stream ────────────────────────────────────────────────────────────────────────────

    def send_request(self, head: OutboundHead, user: OriginUser, turn: Turn) -> None:
        """Begin a request; its response goes to `user`. It leaves with the next flush."""
        connection = self._connection
        self.user = user
        connection.attach(self, turn)
        self.number, message = connection.machine.send_request(head, self)
        connection.channel.queue(message)

    def send_data(self, data: bytes | memoryview) -> None:
        """Bytes of the request's body; they leave with the next flush."""
        connection = self._connection
        connection.channel.queue(connection.machine.send_data(self.number, data))

    def expect_trailers(self) -> None:
        """Fields may follow the last byte that the request has announced."""
        self._connection.machine.expect_trailers(self.number)

    def end_request(self, trailers: Sequence[Field] = ()) -> None:
        """The request's body is whole."""
        connection = self._connection
        connection.channel.queue(connection.machine.end_request(self.number, trailers))

    def flush(self) -> None:
        """Send what was queued."""
        self._connection.channel.flush()

    def pause(self) -> None:
        """Read no further for now: the client is slow."""
        self._connection.machine.pause(self.number)

    def resume(self) -> None:
        """Read on."""
        connection = self._connection
        connection.machine.resume(self.number)
        connection.after_reading()

    def release(self) -> None:
        """The stream has ended. Returns nothing: its connection never left the pool."""
        self.user = None
        self._connection.detach(self)

    def close(self) -> None:
        """Do nothing: the connection serves other streams."""

    def abort(self) -> None:
        """Reset the stream."""
        self.release()

    def drop(self) -> None:
        """End the stream in the middle of a request."""
        self.release()

    # ── the machine's calls ───────────────────────────────────────────────────────────────────────

    def response_interim(self, head: ResponseHead) -> None:
        """A response of class 1xx."""
        self._touch()
        user = self.user
        if user is not None:
            try:
                user.response_interim(head)
            except OverLimit as error:
                user.over_limit(error.decision)

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        """The response's head."""
        self._touch()
        if not head.encoding and not head.message_encoding:
            self._connection.trust(self)
        user = self.user
        if user is not None:
            try:
                user.response_begun(head, body)
            except OverLimit as error:
                user.over_limit(error.decision)

    def response_data(self, data: bytes | memoryview) -> None:
        """Bytes of the body."""
        self._touch()
        user = self.user
        if user is not None:
            try:
                user.response_data(data)
            except OverLimit as error:
                user.over_limit(error.decision)

    def response_ended(self, trailers: Sequence[Field]) -> None:
        """The response is whole."""
        user = self.user
        if user is not None:
            try:
                user.response_ended(trailers)
            except OverLimit as error:
                user.over_limit(error.decision)

    def response_lost(self, why: str, *, unread: bool) -> None:
        """The stream is gone before its response was whole."""
        user, self.user = self.user, None
        self._connection.detach(self)
        if user is None:
            return
        if why:
            user.fail(Reason.UPSTREAM_MALFORMED, why)
        else:
            user.origin_lost(stale=unread, unread=unread)

    def request_caught_up(self) -> None:
        """The origin can take more of the request."""
        if self.user is not None and not self._connection.channel.slow:
            self.user.origin_caught_up()

    def _touch(self) -> None:
        self.touched = True
        self._connection.touch(self)
