"""The requests of a client that speaks HTTP/2: many at once, each a `Stream`.

A stream waits, is slow or is cut alone: the others of its connection go on. The bytes that one
stream holds are bounded by its windows, and a response that the client does not read counts as a
request of the session until it was read (I9).
"""

from __future__ import annotations

import base64
import contextlib
import os
from typing import TYPE_CHECKING

from keyhole.gateway.http.http_connection import HttpConnection
from keyhole.gateway.http.judging import judge_again, judge_request
from keyhole.gateway.http.patience import HEAD_TIMEOUT, KEEP_ALIVE, StreamClock
from keyhole.gateway.http.record import record_request
from keyhole.gateway.http.refusing import end_over_limit, note_malformed
from keyhole.gateway.http.states import Life, Stage
from keyhole.gateway.http.stream import Stream
from keyhole.gateway.tls import HTTP2, RECORD
from keyhole.http.frames import Code, ConnectionFault
from keyhole.http.http2_server import Http2Server
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Malformed, OverLimit
from keyhole.model.event import Event, EventKind
from keyhole.model.rule import GRPC

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from keyhole.gateway.http.connection import ClientConnection
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.http.field import Field
    from keyhole.http.request import RequestHead
    from keyhole.http.response import Reply

STREAMS_RULE = "http2.streams"
"""The rule that streams beyond `MAX_STREAMS` are refused by; no key of the policy sets it."""


class Http2Connection(HttpConnection):
    """One connection."""

    __slots__ = (
        "_clocks", "_flushed", "_idle_since", "_reads", "_refused", "_section_since", "_sending",
        "_touched", "_unread", "streams",
    )  # fmt: skip

    protocol = HTTP2
    machine: Http2Server
    success_switches = True

    def __init__(self, client: ClientConnection) -> None:
        super().__init__(client)
        reader = self.host.authorizer.reader
        self.machine = Http2Server(reader, self, _new_key, self.state.spare_window)
        self.streams: dict[int, Stream] = {}
        """Requests under way, by their number."""
        self._touched: dict[Stream, None] = {}
        """Streams whose request has got bytes in this read."""
        self._unread: set[int] = set()
        """Responses that are whole here and that the client has not taken."""
        self._clocks: dict[int, StreamClock] = {}
        self._sending = StreamClock(self.loop.time())
        """Measures how fast the client reads the responses of all streams."""
        self._idle_since = self.loop.time()
        self._section_since: float | None = None
        """When a frame, or a field section, was first seen without its end."""
        self._flushed = 0
        """Bytes received, when they were last flushed at once."""
        self._refused = 0
        """Streams beyond `MAX_STREAMS`, since the last sweep."""
        self._reads = 0
        """The machine's counter of reads, at the last sweep."""
        self.channel.send(self.machine.take())

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def received(self, view: memoryview) -> None:
        """Plain bytes of the client."""
        try:
            self.machine.receive(view)
        except ConnectionFault as fault:
            self._fail(fault)
            return
        self._after_reading()

    def _read_on(self) -> None:
        """Go on with frames that came together with many others."""
        if self.client.life is not Life.OPEN or self.channel.slow:
            return
        self.channel.resume()
        try:
            self.machine.read_on()
        except ConnectionFault as fault:
            self._fail(fault)
            return
        self._after_reading()

    def _after_reading(self) -> None:
        """All that came at once was handed over."""
        if self._touched:
            touched, self._touched = self._touched, {}
            for stream in touched:
                stream.flush_request()
        self._send_what_waits()
        machine, channel = self.machine, self.channel
        if channel.slow:
            # A client that does not read its responses gets to send no further request (I9).
            channel.pause()
        elif machine.behind:
            channel.pause()
            channel.turn.later(self._read_on)
        elif machine.peer_going and not machine.streams:
            self.client.leave()

    def _send_what_waits(self) -> None:
        """Send the machine's own frames, after those that streams have queued."""
        message = self.machine.take()
        if message:
            self.channel.queue(message)
        self.channel.flush()

    def request_begun(self, number: int, head: RequestHead) -> Receiver:
        """The machine has read a head."""
        self.requests += 1
        self.state.requested += 1
        now = self.loop.time()
        stream = self.streams[number] = Stream(self, number, head, self.host, now, head.length == 0)
        try:
            self.count_up(len(head.raw))
            judge_request(stream)
        except OverLimit as error:
            end_over_limit(self, stream, error.decision)
        self._touched[stream] = None
        return Receiver(self, stream)

    def request_refused(self, number: int, why: str, size: int) -> None:
        """A head that is no request: answered with 400, and its stream is reset."""
        reply = note_malformed(self, why)
        try:
            self.count_refused(size)
        except OverLimit as error:
            end_over_limit(self, None, error.decision)
            self.channel.queue(self.machine.reset(number, Code.INTERNAL_ERROR))
            return
        self.channel.queue(self.machine.reject(number, reply))

    def touch(self, stream: Stream) -> None:
        """A request has got bytes, which leave when all that came at once was handed over."""
        self._touched[stream] = None

    def hold(self, stream: Stream) -> None:
        """Read no further of this request."""
        self.machine.pause(stream.number)

    @contextlib.contextmanager
    def resuming(self, stream: Stream) -> Iterator[None]:
        """Run the block that a stream waited for, then process the bytes that arrived meanwhile."""
        machine, number = self.machine, stream.number
        machine.unpause(number)
        try:
            yield
            if not machine.is_paused(number):
                machine.resume(number)
        except Malformed as error:
            self.refuse_malformed(stream, error.why)
        except OverLimit as error:
            end_over_limit(self, stream, error.decision)
        self._touched[stream] = None
        self._after_reading()

    def slow_down(self, stream: Stream) -> None:
        """The origin takes the request slower than it comes."""
        self.machine.pause(stream.number)

    def read_on(self, stream: Stream) -> None:
        """The origin can take more of the request."""
        with self.resuming(stream):
            pass  # bytes that are held are sent

    def may_have_trailers(self, stream: Stream) -> bool:
        """Whether the request has not ended with the bytes that it announced."""
        return self.machine.may_have_trailers(stream.number)

    def wire_size(self, stream: Stream) -> int:
        """Bytes that the request's body has had so far, its framing included."""
        return self.machine.wire_size(stream.number)

    def refuse_malformed(self, stream: Stream, why: str) -> None:
        """Fail a stream whose body is malformed."""
        if stream.response is not None:
            rule = self.destination.decision.rule
            stream.fail(Reason.HTTP_MALFORMED, why, Decision(rule=rule))
            return
        self._forget(stream, self.now())
        stream.abandon(Reason.HTTP_MALFORMED)
        self.channel.queue(self.machine.reject(stream.number, note_malformed(self, why)))

    # ── responses ─────────────────────────────────────────────────────────────────────────────────

    def caught_up(self) -> None:
        """The client can take more bytes, of any stream."""
        for number, stream in list(self.streams.items()):
            if stream.origin is not None and not self.machine.is_slow(number):
                stream.origin.resume()
        for number in [each for each in self._unread if not self.machine.is_slow(each)]:
            self._read_at_last(number)
        if self.machine.behind:
            self.channel.turn.later(self._read_on)
        else:
            self.channel.resume()

    def stream_caught_up(self, number: int) -> None:
        """The client can take more bytes of one stream."""
        stream = self.streams.get(number)
        if stream is not None:
            if stream.origin is not None and not self.channel.slow:
                stream.origin.resume()
        elif number in self._unread and not self.channel.slow:
            self._read_at_last(number)

    def is_slow(self, stream: Stream) -> bool:
        """Whether the client takes the response slower than it comes."""
        return self.channel.slow or self.machine.is_slow(stream.number)

    def reply(self, stream: Stream, reply: Reply, *, close: bool) -> None:
        """Answer a request without an origin."""
        self.channel.queue(self.machine.send_reply(stream.number, reply))
        self.finished(stream, self.now())

    def finished(self, stream: Stream, now: float) -> None:
        """The response is complete. The request counts as under way until the client has read
        it."""
        number = stream.number
        if self.down - self._flushed <= RECORD:
            # Small responses of one turn leave together: a record of TLS costs as much as a head.
            self.channel.flush_late()
        else:
            self._flushed = self.down
            self.channel.flush()
        self._forget(stream, now)
        if self.channel.slow or self.machine.is_slow(number):
            self._unread.add(number)
            self.state.busy += 1

    def _read_at_last(self, number: int) -> None:
        self._unread.discard(number)
        self._clocks.pop(number, None)
        self.state.busy -= 1

    def _forget(self, stream: Stream, now: float) -> None:
        self.streams.pop(stream.number, None)
        self._touched.pop(stream, None)
        if self._clocks:
            self._clocks.pop(stream.number, None)
        self._idle_since = now

    def end_relay(self, stream: Stream) -> None:
        """The origin has ended a WebSocket properly."""
        self.channel.queue(self.machine.end_response(stream.number))
        self.finished(stream, self.now())

    def cut(self, stream: Stream | None, reason: str) -> None:
        """Reset one stream."""
        if stream is not None:
            self._forget(stream, self.now())
            stream.abandon()  # unless it is over
            self.channel.queue(self.machine.reset(stream.number, Code.INTERNAL_ERROR))
            self.channel.flush()

    def stream_refused(self) -> None:
        """The client has opened more streams than it may: they are counted until the next sweep."""
        self._refused += 1

    def _note_refused(self) -> None:
        """Write down how many streams were refused, all in one event (I8)."""
        count, self._refused = self._refused, 0
        if count:
            details = (("streams", count),)
            reason, rule = Reason.OVER_LIMIT, STREAMS_RULE
            self.note(Event(EventKind.LIMIT, Verdict.DENY, reason, rule, self.name, details))

    def stream_lost(self, number: int, why: str) -> None:
        """The client has reset a stream, or broke a rule of it."""
        stream = self.streams.get(number)
        if why:
            note_malformed(self, why)
        if stream is not None:
            self._forget(stream, self.now())
            stream.abandon()
        elif number in self._unread:
            self._read_at_last(number)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def change(self, host: InspectedHost) -> None:
        """Another policy is in force."""
        super().change(host)
        for stream in list(self.streams.values()):
            judge_again(stream, host)
        self._send_what_waits()

    def _fail(self, fault: ConnectionFault) -> None:
        """The client broke a rule of the connection."""
        note_malformed(self, fault.why)
        message = self.machine.fail(fault)
        self.channel.flush()  # responses that are whole
        self.drop_streams()
        self.channel.send(message)
        self.client.leave()

    def sweep(self, now: float, idle_timeout: float) -> None:
        """End streams or the connection when they are silent for too long or move too slowly
        (I9)."""
        machine = self.machine
        machine.refill()
        self._note_refused()
        moved, self._reads = machine.reads != self._reads, machine.reads
        if moved or not machine.mid_section or machine.behind:
            self._section_since = None
        elif self._section_since is None:
            self._section_since = now
        elif now - self._section_since > HEAD_TIMEOUT:
            self.client.cut(Reason.IDLE)
            return
        if not self.streams and not self._unread and not self.channel.slow:
            if now - self._idle_since > KEEP_ALIVE:
                self.channel.send(machine.leave())
                self.client.leave()
            return
        for number, stream in list(self.streams.items()):
            if self._clock(number, now).is_stale(machine.moved(number), now, idle_timeout):
                self._end_stream(stream, now, Reason.IDLE)
        self.end_if_slow(now)

    def end_if_slow(self, now: float) -> None:
        """End streams that move too slowly, or the connection of a client that reads nothing."""
        channel, allowed = self.channel, self.state.limits.body_time
        reason = Reason.CLIENT_SLOW if channel.slow else ""
        if self._sending.is_slow(reason, self.down - channel.unsent, now, allowed):
            self.client.cut(Reason.CLIENT_SLOW)
            return
        for number, stream in list(self.streams.items()):
            reason = self._waits_for(stream)
            clock, moved = self._clock(number, now), self.machine.moved(number)
            if clock.is_slow(reason, moved, now, allowed):
                self._end_stream(stream, now, reason)
        for number in list(self._unread):
            clock, moved = self._clock(number, now), self.machine.moved(number)
            if clock.is_slow(Reason.CLIENT_SLOW, moved, now, allowed):
                self.channel.send(self.machine.reset(number))
                self._read_at_last(number)

    def _clock(self, number: int, now: float) -> StreamClock:
        clock = self._clocks.get(number)
        if clock is None:
            clock = self._clocks[number] = StreamClock(now)
        return clock

    def _waits_for(self, stream: Stream) -> str:
        """The reason that names the peer which holds up a body. An origin may take its time to
        answer."""
        if self.is_slow(stream):
            return Reason.CLIENT_SLOW
        if stream.origin is not None and stream.origin.slow:
            return Reason.UPSTREAM_SLOW
        if self.machine.waits_for_data(stream.number) and not _goes_both_ways(stream):
            return Reason.CLIENT_SLOW
        return ""

    def _end_stream(self, stream: Stream, now: float, reason: str) -> None:
        if reason == Reason.UPSTREAM_SLOW:
            stream.fail(reason, "")
            return
        if stream.response is not None:
            record_request(stream.response, now, reason)
        stream.cut(reason)

    def progress(self, stream: Stream) -> None:
        """The origin has taken a part of a push that waits here."""
        self._clock(stream.number, self.now()).restart(self.now())

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return bool(self.streams)

    def drop_streams(self) -> None:
        """Abandon requests under way: their client has gone."""
        self._note_refused()
        for stream in list(self.streams.values()):
            stream.abandon()
        self.streams.clear()
        self._touched.clear()
        self.state.busy -= len(self._unread)
        self._unread.clear()
        self._clocks.clear()
        self.channel.drop_queue()


def _goes_both_ways(stream: Stream) -> bool:
    """Whether each side may wait for the other's next message: a WebSocket, a gRPC call, a response
    that has begun. `limits.idle` bounds the silence, as it does for a WebSocket."""
    response = stream.response
    return (
        stream.stage is Stage.RELAY
        or stream.head.word == GRPC
        or (response is not None and response.begun)
    )


def _new_key() -> bytes:
    """A Sec-WebSocket-Key (RFC 6455 §4.1)."""
    return base64.b64encode(os.urandom(16))


class Receiver:
    """Receives a request's body from the machine for one stream: a fault ends this stream alone."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: Http2Connection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream

    def request_data(self, data: bytes | memoryview) -> None:
        """Bytes of the body, or of a WebSocket."""
        connection, stream = self._connection, self._stream
        connection.touch(stream)
        try:
            stream.request_data(data)
        except Malformed as error:
            connection.refuse_malformed(stream, error.why)
        except OverLimit as error:
            end_over_limit(connection, stream, error.decision)

    def request_ended(self, trailers: Sequence[Field]) -> None:
        """The body is whole."""
        connection, stream = self._connection, self._stream
        connection.touch(stream)
        if stream.stage is Stage.RELAY:
            stream.abandon()
            connection.end_relay(stream)
            return
        try:
            stream.request_ended(trailers)
        except Malformed as error:
            connection.refuse_malformed(stream, error.why)
        except OverLimit as error:
            end_over_limit(connection, stream, error.decision)
