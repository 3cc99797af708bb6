"""The requests of a client that speaks HTTP/1.1: one after the other, each a `Stream`.

The machine keeps the bytes of the next request until the last was answered. Everything runs in
protocol callbacks; a task only fetches what a request waits for.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from keyhole.gateway.http.http_connection import HttpConnection
from keyhole.gateway.http.judging import judge_again, judge_request
from keyhole.gateway.http.patience import Patience
from keyhole.gateway.http.record import record_request
from keyhole.gateway.http.refusing import end_over_limit, note_malformed
from keyhole.gateway.http.states import Life
from keyhole.gateway.http.stream import Stream
from keyhole.gateway.tls import HTTP1
from keyhole.http.server import Http1Server
from keyhole.model.decision import Decision, Reason
from keyhole.model.errors import Malformed, OverLimit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.gateway.http.connection import ClientConnection
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.http.request import RequestHead
    from keyhole.http.response import Reply


class Http1Connection(HttpConnection):
    """One connection."""

    __slots__ = ("patience", "stream")

    protocol = HTTP1
    machine: Http1Server

    def __init__(self, client: ClientConnection) -> None:
        super().__init__(client)
        self.machine = Http1Server(self.host.authorizer.reader, self)
        self.patience = Patience(self.loop.time())
        self.stream: Stream | None = None
        """The request under way."""

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def received(self, view: memoryview) -> None:
        """Plain bytes of the client."""
        try:
            self.machine.receive(view)
        except Malformed as error:
            self._refuse_malformed(error.why)
        except OverLimit as error:
            end_over_limit(self, self.stream, error.decision)
        if self.stream is not None:
            self.stream.flush_request()
        if self.machine.held:
            self._hold_back()

    def request_begun(self, number: int, head: RequestHead) -> Stream:
        """The machine has read a head. Raises OverLimit."""
        self.requests += 1
        self.state.requested += 1
        self.count_up(len(head.raw))
        now = self.loop.time()
        self.patience.request_begun(self.up + self.down, now)
        stream = self.stream = Stream(self, number, head, self.host, now, head.length == 0)
        judge_request(stream)
        return stream

    def hold(self, stream: Stream) -> None:
        """Stop reading: later bytes wait."""
        self.machine.pause()

    @contextlib.contextmanager
    def resuming(self, stream: Stream | None) -> Iterator[None]:
        """Run the block that a stream waited for, then process the bytes that arrived meanwhile."""
        machine = self.machine
        try:
            machine.paused = False
            yield
            if not machine.paused:
                present = self.stream
                if present is None or present.origin is None or not present.origin.slow:
                    self.channel.resume()
                machine.resume()
        except Malformed as error:
            self._refuse_malformed(error.why)
        except OverLimit as error:
            end_over_limit(self, self.stream, error.decision)
        self._after_reading()

    def _after_reading(self) -> None:
        """All bytes of one read were handed over."""
        if self.stream is not None:
            self.stream.flush_request()
        if self.machine.held:
            self._hold_back()

    def _hold_back(self) -> None:
        """Bytes are held: the beginning of a head, or bytes that wait for the end of a response."""
        machine = self.machine
        if machine.head_begun:
            self.patience.head_begun(self.now())
            return
        # Reading stops only now that something is held: a client that leaves while it waits would
        # not be noticed otherwise.
        self.channel.pause()
        if machine.behind:
            self.channel.turn.later(self._read_next)

    def _read_next(self) -> None:
        """Process further requests of one large read."""
        if self.client.life is Life.OPEN and self.stream is None:
            with self.resuming(None):
                pass  # the next head is held

    def slow_down(self, stream: Stream) -> None:
        """The origin takes the request slower than it comes."""
        self.channel.pause()

    def read_on(self, stream: Stream) -> None:
        """The origin can take more: read again, unless bytes are held."""
        if not self.machine.held or self.machine.head_begun:
            self.channel.resume()

    def wire_size(self, stream: Stream) -> int:
        """Bytes that the request's body has had so far, its framing included."""
        return self.machine.wire_size

    # ── responses ─────────────────────────────────────────────────────────────────────────────────

    def caught_up(self) -> None:
        """The client can take more bytes."""
        stream = self.stream
        if stream is None:
            self._read_next()
        elif stream.origin is not None:
            stream.origin.resume()

    def is_slow(self, stream: Stream) -> bool:
        """Whether the client takes the response slower than it comes."""
        return self.channel.slow

    def reply(self, stream: Stream, reply: Reply, *, close: bool) -> None:
        """Answer a request without an origin."""
        self.channel.drop_queue()
        self.channel.queue(self.machine.send_reply(stream.number, reply, close=close))
        self.finished(stream, self.now())

    def finished(self, stream: Stream, now: float) -> None:
        """The response is complete: send it, and read the next request."""
        self.stream = None
        machine, channel = self.machine, self.channel
        channel.flush()
        if machine.closes:
            self.client.leave()
            return
        self.patience.restart(now)
        channel.resume()
        # A client that does not read its responses gets to send no further request (I9).
        machine.next(paused=channel.slow)
        if machine.held:
            if channel.slow:
                self._hold_back()
            else:
                self._read_next()

    def end_relay(self, stream: Stream) -> None:
        """The origin has ended a WebSocket properly."""
        self.channel.close()

    def _refuse_malformed(self, why: str) -> None:
        """RFC 9112 §2.2: answered with 400, and the connection is closed."""
        stream = self.stream
        if stream is not None and stream.response is not None:
            # Inside a body, when a response may have begun: a 400 must not be written into it.
            rule = self.destination.decision.rule
            stream.fail(Reason.HTTP_MALFORMED, why, Decision(rule=rule))
            return
        reply = note_malformed(self, why)
        if stream is None:
            try:
                self.count_refused(self.machine.head_size)
            except OverLimit as error:
                end_over_limit(self, None, error.decision)
                return
        self.drop_streams(Reason.HTTP_MALFORMED)
        self.channel.send(self.machine.reject(reply))
        self.client.leave()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def change(self, host: InspectedHost) -> None:
        """Another policy is in force."""
        super().change(host)
        if self.stream is not None:
            judge_again(self.stream, host)

    def sweep(self, now: float, idle_timeout: float) -> None:
        """End streams or the connection when they are silent for too long or move too slowly
        (I9)."""
        if self.patience.is_stale(self, now, idle_timeout):
            self.client.cut(Reason.IDLE)
        else:
            self.end_if_slow(now)

    def end_if_slow(self, now: float) -> None:
        """End the request or the connection when the peer that it waits for moves too few bytes
        (I9)."""
        reason, stream = self.patience.find_slow(self, now), self.stream
        if not reason:
            return
        response = stream.response if stream is not None else None
        if reason == Reason.UPSTREAM_SLOW and stream is not None:
            stream.fail(reason, "")
            return
        if response is not None:
            record_request(response, now, reason)
        self.client.cut(reason)

    def progress(self, stream: Stream) -> None:
        """The origin has taken a part of a push that waits here."""
        self.patience.restart(self.now())

    def cut(self, stream: Stream | None, reason: str) -> None:
        """End the connection, by reset: HTTP/1.1 has no other way to end a message early."""
        self.client.cut(reason)

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self.stream is not None

    def drop_streams(self, reason: str = "") -> None:
        """Abandon a request under way. `reason` is the recorded one; without it, the client has
        gone."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.abandon(reason)
        self.channel.drop_queue()
