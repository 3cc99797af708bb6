"""The response of one stream: read from the origin, redacted, and queued for the client.

Made by `stream.py` when a request is sent on; the origin's connection calls it (`OriginUser`). It
decides whether a response may pass, and whether its connection may serve another request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.gateway.git.lfs import Transfer
from keyhole.gateway.http.record import record_further, record_request
from keyhole.gateway.http.redaction import RedactedResponse, redact_head
from keyhole.gateway.http.refusing import end_over_limit
from keyhole.gateway.http.websocket import FrameScan
from keyhole.model.decision import Reason, Verdict
from keyhole.model.errors import Malformed, OverLimit, ResponseUnfit
from keyhole.model.rule import BODILESS
from keyhole.wire.websocket import accept_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.gateway.budgets import Tally
    from keyhole.gateway.http.http_connection import HttpConnection
    from keyhole.gateway.http.outbound import OutboundRequest
    from keyhole.gateway.http.stream import Stream
    from keyhole.http.field import Field
    from keyhole.http.response import ResponseHead
    from keyhole.inject.scrub import Needles
    from keyhole.model.decision import Decision, RequestDecision

_CONTINUE = 100
_SWITCHING = 101
_SUCCESS = 200
_PARTIAL = 206
_REDIRECTS = 300
_ERRORS = 400

_UNPASSABLE = (ResponseUnfit, Malformed)
"""Errors of a response whose body cannot be passed on."""


class Response(Struct, eq=False):
    """The response to one request."""

    stream: Stream
    _number: int
    _connection: HttpConnection
    outbound: OutboundRequest
    decision: RequestDecision
    tally: Tally | None = None
    """Counts the tokens of the request, where its service has a budget of them."""
    frames: FrameScan | None = None
    """The frames of a WebSocket, after its handshake."""
    status: int = 0
    recorded: bool = False
    """Whether the request's event was written."""
    _redacted: RedactedResponse | None = None
    _begun: bool = False
    _early: bool = False
    """Whether the response began before the whole request was sent."""

    @property
    def begun(self) -> bool:
        """Whether the client has received a part of it, so that no other answer can be given."""
        return self._begun or self.frames is not None

    def search_for(self, needles: Needles) -> bool:
        """Also search the remaining bytes for these. Returns False if that cannot be done."""
        own = self.outbound.needles
        if own is not needles:
            # A transfer has needles of its own: the secrets that were lent for it.
            own.become((own, needles))
        return not needles or self._redacted is None or not self._redacted.blind

    # ── the origin's calls ────────────────────────────────────────────────────────────────────────

    def response_interim(self, head: ResponseHead) -> None:
        """An interim response (1xx), for a client that waits for it."""
        outbound, connection = self.outbound, self._connection
        unexpected = head.status == _CONTINUE and not outbound.head.expects_continue
        # A reader rewrites this response, so nothing may pass before the reader has seen it.
        if unexpected or outbound.reader is not None:
            return
        start, lines = redact_head(outbound.needles, head.start, head.lines)
        text = connection.machine.send_interim(self._number, start, lines)
        if text:
            self.stream.count_down(len(text))
            connection.channel.queue(text)

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        """The head, with the body if that is complete."""
        outbound, stream = self.outbound, self.stream
        self.status = head.status
        if not stream.sent:
            self._early = True
        if body is None and outbound.credentialed and _SUCCESS <= head.status < _ERRORS:
            # The same is done when the response is whole, which may be much later.
            self._connection.state.credentialed = self._connection.now()
        if self.tally is not None:
            self.tally.begin(head)
        if head.status == _SWITCHING:
            self._switch(head)
            return
        if (
            outbound.head.websocket
            and _SUCCESS <= head.status < _REDIRECTS
            and self._connection.success_switches
        ):
            self.fail(Reason.UPSTREAM_MALFORMED, "the origin does not speak WebSocket")
            return
        if head.status == _PARTIAL and outbound.needles and not outbound.ranges:
            # Ranges are not permitted here: a secret that a range cuts would not be found (I7).
            self.fail(Reason.ENCODING_REFUSED, "the origin sends a piece of an answer")
            return
        reader = outbound.reader
        try:
            rewriter = None
            if reader is not None:
                found = reader.read(head)
                if isinstance(found, Transfer):
                    # The object is on another host; the client must not learn its address (I1).
                    stream.follow(self, found)
                    return
                rewriter = found
            self._redacted = RedactedResponse.of(head, outbound.needles, rewriter)
        except Malformed as error:
            self.fail(Reason.UPSTREAM_MALFORMED, error.why)
        except ResponseUnfit as error:
            self.fail(error.reason, error.message)
        else:
            if reader is None or not reader.whole:
                self._begin(self._redacted, body)
            elif body is not None:
                self.response_data(body)

    def _begin(self, redacted: RedactedResponse, body: bytes | None) -> None:
        """Send the head, and the body if that is complete."""
        connection, number = self._connection, self._number
        pieces: tuple[bytes | memoryview, ...] = ()
        self._begun = True
        record_request(self, connection.loop.time())
        if body is None:
            redacted.redact_head()
        else:
            if self.tally is not None:
                self.tally.feed(body)
            try:
                pieces = redacted.redact_whole(body)
            except _UNPASSABLE as error:
                self._cut(error)
                return
        machine, channel = connection.machine, connection.channel
        text = machine.begin_response(
            number, redacted.start, redacted.lines, redacted.length, body=redacted.has_body
        )
        size = len(text) + (len(body) if body is not None else 0)
        connection.count_down(size, self.stream.meter)
        channel.queue(text)
        for piece in pieces:
            if piece:
                channel.queue(machine.send_data(number, piece))

    def response_data(self, data: bytes | memoryview) -> None:
        """Bytes of the response; a view is valid until the next flush."""
        if self.frames is not None:
            self._pass_frames(self.frames, bytes(data))
            return
        redacted, connection = self._redacted, self._connection
        if redacted is None:
            return
        self.stream.count_down(len(data))
        if self.tally is not None:
            self.tally.feed(data)
        try:
            pieces = redacted.redact(data)
        except _UNPASSABLE as error:
            self._cut(error)
            return
        machine, channel = connection.machine, connection.channel
        for piece in pieces:
            if piece:
                channel.queue(machine.send_data(self._number, piece))

    def response_ended(self, trailers: Sequence[Field]) -> None:
        """The response is complete."""
        redacted, connection, number = self._redacted, self._connection, self._number
        if redacted is None:
            return
        try:
            rest = redacted.end()
        except _UNPASSABLE as error:
            self._cut(error)
            return
        if self.tally is not None:
            self._settle(whole=True)
        if not self._begun:
            self._begin(redacted, None)
        machine, channel = connection.machine, connection.channel
        if rest:
            channel.queue(machine.send_data(number, rest))
        lines = b""
        if trailers and self.outbound.reader is None:
            lines = redacted.redact_trailers(trailers)
            self.stream.count_down(len(lines))
        last = machine.end_response(number, lines)
        if last:
            channel.queue(last)
        if redacted.hits:
            record_further(self, Reason.SECRET_SCRUBBED, Verdict.ALLOW)
        outbound = self.outbound
        succeeded = outbound.credentialed and self.status < _ERRORS
        self.stream.finish(outbound.pool, keep=self._origin_read_all(), succeeded=succeeded)

    def response_flush(self) -> None:
        """Send the queued bytes to the client; a slow client slows the origin down."""
        stream = self.stream
        if stream.origin is not None:
            connection = self._connection
            connection.channel.flush()
            if connection.is_slow(stream):
                stream.origin.pause()

    def origin_lost(self, *, stale: bool, unread: bool = False) -> None:
        """The origin's connection ended before the response was complete."""
        stream = self.stream
        stream.origin = None
        if stale and self._redacted is None and stream.may_retry(unread=unread):
            stream.retry(self)
            return
        self.fail(Reason.UPSTREAM_CLOSED, "the origin closed the connection before it answered")

    def origin_caught_up(self) -> None:
        """The origin can take more of the request."""
        self.stream.send_more()

    def fail(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """There is no response: answer with an error, or cut a response that has begun."""
        self.stream.fail(reason, why, decision)

    def over_limit(self, decision: Decision) -> None:
        """A limit on bytes is reached."""
        end_over_limit(self._connection, self.stream, decision)

    # ── WebSocket ─────────────────────────────────────────────────────────────────────────────────

    def _switch(self, head: ResponseHead) -> None:
        """RFC 6455 §4.1: relay only after the right answer to our key, without extensions."""
        outbound, connection = self.outbound, self._connection
        key = outbound.websocket_key
        right = (
            key
            and head.upgrade == b"websocket"
            and head.websocket_accept == accept_for(key)
            and not head.websocket_extensions
        )
        if not right:
            self.fail(Reason.UPSTREAM_MALFORMED, "the answer to a WebSocket handshake is wrong")
            return
        self.frames = FrameScan(outbound.needles)
        lines = [*head.lines, b"Sec-WebSocket-Accept: %b\r\n" % head.websocket_accept]
        if head.websocket_protocol:
            lines.append(b"Sec-WebSocket-Protocol: %b\r\n" % head.websocket_protocol)
        start, lines = redact_head(outbound.needles, head.start, lines)
        connection.channel.queue(connection.machine.switch(self._number, start, lines))
        connection.channel.flush()
        if outbound.credentialed:
            connection.state.credentialed = connection.now()
        record_request(self, connection.loop.time())
        self.stream.relay()

    def _pass_frames(self, frames: FrameScan, data: bytes) -> None:
        """Pass frames of the origin once they are known to hold no secret."""
        self.stream.count_down(len(data))
        try:
            passed = frames.feed(data, self._read_message if self.tally is not None else None)
        except _UNPASSABLE as error:
            self._cut(error)
            return
        if passed:
            connection = self._connection
            connection.channel.queue(connection.machine.send_data(self._number, passed))

    def _read_message(self, payload: bytes, ends: bool) -> None:
        """Count the tokens that a WebSocket's messages report. Raises OverLimit."""
        if self.tally is not None:
            spent = self.tally.message(payload, ends=ends, sent=self.stream.uploaded)
            if spent is not None:
                raise OverLimit(spent)

    def protocol_ended(self) -> None:
        """The origin has ended a WebSocket properly."""
        self.stream.end_relay()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def _cut(self, error: ResponseUnfit | Malformed) -> None:
        unfit = isinstance(error, ResponseUnfit)
        reason = error.reason if unfit else Reason.UPSTREAM_MALFORMED
        if self.begun:
            record_further(self, reason, Verdict.DENY)
            self.stream.cut(reason)
        else:
            self.fail(reason, str(error))

    def settle(self) -> None:
        """Charge the tokens of the response; nothing more will be learned of them."""
        if self.tally is not None:
            self._settle(whole=False)

    def _settle(self, *, whole: bool) -> None:
        tally, self.tally = self.tally, None
        if tally is None:
            return
        stream = self.stream
        if self.frames is not None:
            tally.end_messages(stream.uploaded)
        else:
            tally.end(max(stream.head.length, stream.uploaded), whole=whole)

    def _origin_read_all(self) -> bool:
        """Whether the origin has surely read all of the request, so that its connection may be
        reused (I4).

        Attack: the origin answers and leaves the body unread, and then reads the body as the next
        request. If that smuggled request announces a body, the next request that was judged becomes
        this body, with its injected header, and the origin stores it wherever the smuggled one
        says. Servers do not read bodies when they redirect, refuse or answer early, nor where HTTP
        defines none. Whether a server of the user's own reads the bodies that it accepts is not
        known.
        """
        outbound = self.outbound
        if outbound.head.length == 0:
            return not outbound.head.websocket
        return (
            outbound.catalogued
            and self.stream.sent
            and not self._early
            and self.status < _REDIRECTS
            and outbound.head.method not in BODILESS
        )
