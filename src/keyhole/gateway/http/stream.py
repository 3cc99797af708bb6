"""One stream: a request with its response, from its head to its last byte.

Made by `http1.py` or `http2.py` for every request, and judged by `judging.py`. It waits for what
the request needs (a token, a body that must be seen, a connection to the origin), sends it on, and
ends. The response is in `response.py`. Nothing here depends on the version of HTTP that the client
speaks.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.gateway import refusal_messages
from keyhole.gateway.budgets import tally_for
from keyhole.gateway.git.largefiles import TransferResponseReader
from keyhole.gateway.http.admission import BODY_LIMIT, leave
from keyhole.gateway.http.judged_messages import JudgedMessages
from keyhole.gateway.http.judged_response import JudgedResponseReader
from keyhole.gateway.http.record import record_further, record_notes, record_request, record_unsent
from keyhole.gateway.http.refusing import refuse_unfit
from keyhole.gateway.http.response import Response
from keyhole.gateway.http.states import STAGES, Stage
from keyhole.gateway.session import DECOY_RULE
from keyhole.gateway.tasks import Tasks
from keyhole.inject.canary import CANARY
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Malformed, Misuse, OverLimit, RequestUnfit, UpstreamFailed
from keyhole.policy.limit import decide_total
from keyhole.system.dialler import still_allowed
from keyhole.wire.websocket import write_close

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from keyhole.gateway.bodies import Collected
    from keyhole.gateway.budgets import UsageNote
    from keyhole.gateway.git.lfs import Transfer
    from keyhole.gateway.git.push_report import ReportCallback
    from keyhole.gateway.git.quarantine import Quarantine
    from keyhole.gateway.http.collecting import Collecting
    from keyhole.gateway.http.host import InspectedHost
    from keyhole.gateway.http.http_connection import HttpConnection
    from keyhole.gateway.http.outbound import OutboundRequest
    from keyhole.gateway.http.websocket import FrameCanary
    from keyhole.gateway.requests import AuthorizedRequest
    from keyhole.gateway.upstream.origin import AnyOriginConnection, Origin
    from keyhole.http.field import Field
    from keyhole.http.request import RequestHead
    from keyhole.http.response import Reply
    from keyhole.inject.canary import CanaryScanner
    from keyhole.inject.event_signing import EventSigner
    from keyhole.policy.body import AnswerRewriter
    from keyhole.policy.budget import Meter

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""RFC 9110 §9.2.2: methods that may be sent again when a kept connection turns out to be closed."""

UNREAD_RETRIES = 6
"""How often a request is sent again if an HTTP/2 origin says that it has not read it (RFC 9113 §8.7
permits it for any method). So an origin that leaves after every few requests still answers all."""

MAX_KEPT = 16 * 1024
"""Bytes of a body that are kept until an origin of HTTP/2 answers, so that they can be sent again
with a request that it says it has not read: most calls of an API, and nearly all of gRPC."""

POLICY_VIOLATION = 1008
"""RFC 6455 §7.4.1: the status of a WebSocket that ends because of a message."""

MAX_WAITS = 3
"""How often a request waits for another one's dial before it dials itself."""

_JUDGE, _TOKEN, _COLLECT, _CONNECT, _EXCHANGE, _RELAY, _ASK, _OVER = Stage


class Stream(Struct, eq=False):
    """One request of a client."""

    connection: HttpConnection
    number: int
    head: RequestHead
    host: InspectedHost
    began: float
    sent: bool
    """Whether all of the request was sent."""
    stage: Stage = _JUDGE
    admitted: bool = False
    """Whether it has a place among the requests under way."""
    meter: Meter | None = None
    """The meter of its service, if that has limits of its own."""
    body_limit: int = 0
    """Bytes that the body may have; `body_rule` is the rule that says so."""
    body_rule: str = BODY_LIMIT
    canary: CanaryScanner | FrameCanary | None = None
    """Searches the body, or the frames of a WebSocket, for the made-up key of a canary file."""
    collecting: Collecting | None = None
    messages: JudgedMessages | None = None
    """Judges the messages of a WebSocket."""
    response: Response | None = None
    origin: AnyOriginConnection | None = None
    uploaded: int = 0
    """Bytes of the body, or of the WebSocket, that were sent."""
    _first: bytes = b""
    """Bytes of the body that were collected before it was sent."""
    _whole: bool = False
    """Whether `_first` is the whole body."""
    _kept: bytes | None = None
    """The body that has gone up so far, while it can be sent again."""
    _spool: Quarantine | None = None
    """A push in quarantine: the body is read from there, not from the client."""
    _events: EventSigner | None = None
    """Signs the body, where that is an event stream of AWS's."""
    _retries: int = 0
    _tasks: Tasks | None = None
    """The tasks that fetch something for the request; None until the first."""

    def move(self, stage: Stage) -> None:
        if stage not in STAGES[self.stage]:
            raise Misuse(f"from {self.stage} to {stage}")
        self.stage = stage

    def wait(self, work: Coroutine[object, object, None]) -> None:
        """Read nothing of the client while something is fetched for its request."""
        self.connection.hold(self)
        self.start(work)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the request; a fault in it ends the request."""
        if self._tasks is None:
            self._tasks = Tasks(self.connection.loop)
        self._tasks.start(work, self._fault)

    def _fault(self) -> None:
        self.cut(Reason.INTERNAL)

    # ── sent on ───────────────────────────────────────────────────────────────────────────────────

    def send_push(
        self,
        request: AuthorizedRequest,
        on_report: ReportCallback,
        spool: Quarantine | None,
        first: bytes,
        *,
        whole: bool,
    ) -> None:
        """Send a push that was judged: from quarantine, or `first` and then the rest as it
        arrives."""
        self._spool, self._first, self._whole = spool, first, whole
        self.send(request, None, on_report)

    def send_spool(
        self,
        request: AuthorizedRequest,
        collected: Collected,
        spool: Quarantine,
        reader: AnswerRewriter | None,
    ) -> None:
        """Send a long body that was judged, from its file. Raises OverLimit."""
        self.count_up(spool.size)
        self.uploaded = spool.size
        self._spool = spool
        self.send(request, collected, reader=reader)

    def send(
        self,
        request: AuthorizedRequest,
        collected: Collected | None = None,
        on_report: ReportCallback | None = None,
        reader: AnswerRewriter | None = None,
    ) -> None:
        """Build the request for the origin, and send it."""
        host = self.host
        if collected is not None and self._spool is None:
            self._first, self._whole = collected.body, True
        self.head = request.head
        try:
            outbound = host.outbound.build(request, collected, on_report)
        except RequestUnfit as error:
            refuse_unfit(self, error, request.decision)
            return
        if request.judging is not None:
            judge = outbound.judge = request.judging.judge
            if reader is not None:
                outbound.ranges = False
                outbound.reader = JudgedResponseReader(reader, partial(record_notes, self, judge))
            if request.head.websocket and request.unjudged is not None:
                self.messages = JudgedMessages(self, request, request.judging)
        self._events = outbound.events
        if self._spool is not None:
            outbound.head.length = self._spool.size
        meter = self.meter
        tally = None
        if meter is not None:
            tally = tally_for(meter, host.usage(request.service), self.note_usage(request.service))
        response = self.response = Response(
            self, self.number, self.connection, outbound, request.decision, tally
        )
        origin = host.pool.take(outbound.pool, http1=outbound.head.websocket)
        if origin is not None:
            self._attach(origin, response)
        else:
            self._connect(response)

    def _connect(self, response: Response) -> None:
        """Dial the origin."""
        self.move(_CONNECT)
        self.wait(self._dial(response))

    async def _dial(self, response: Response) -> None:
        connection, host, outbound = self.connection, self.host, response.outbound
        place = host.origin_of(outbound.transfer)
        try:
            origin = await self._reach(outbound, place)
        except UpstreamFailed as error:
            self.fail(error.reason, error.message, error.decision)
            return
        if self.stage is not _CONNECT:
            origin.abort()
            return
        book = connection.state.session.book
        if not still_allowed(book, place.host, place.port, origin.address):
            # The policy has changed while it was dialled.
            origin.abort()
            self.fail(Reason.POLICY_CHANGED, "", Decision())
            return
        with connection.resuming(self):
            self._attach(origin, response)

    async def _reach(self, outbound: OutboundRequest, place: Origin) -> AnyOriginConnection:
        """Raises UpstreamFailed."""
        pool, name, websocket = self.host.pool, outbound.pool, outbound.head.websocket
        for _ in range(MAX_WAITS if not websocket else 0):
            shared, dialling = pool.take_shared(name), pool.dialling(name)
            if shared is not None:
                return shared
            if dialling is None:
                break
            # The origin may speak HTTP/2: then one connection is enough for many requests.
            await dialling.wait()
        with pool.dial(name):
            reached = await self.connection.client.dial(self.host, place, http1=websocket)
        return pool.share(name, reached, offered=not websocket)

    def _attach(self, origin: AnyOriginConnection, response: Response) -> None:
        """Send the request's head, and the part of its body that is here. Raises OverLimit."""
        head = response.outbound.head
        self.move(_EXCHANGE)
        self.origin = origin
        if response.tally is not None:
            response.tally.sent = True
        origin.send_request(head, response, self.connection.state.turn)
        if head.websocket:
            # Attack: an origin that does not switch would read frames as the next request, which
            # was never judged (I4).
            self.connection.hold(self)
        if self._spool is not None:
            self._send_spool(self._spool)
            return
        kept, self._kept = self._kept, b"" if origin.may_leave_unread else None
        if self._first:
            first, self._first = self._first, b""
            self.upload(first)
        elif kept:
            # It was counted when it was sent for the first time.
            self._pass_on(origin, kept)
        if self._whole or self.sent:
            self.sent = True
            if head.length:
                origin.end_request()

    def _send_spool(self, spool: Quarantine) -> None:
        """Send a push that was judged, as fast as the origin takes it."""
        origin = self.origin
        while spool.left and origin is not None and not origin.slow:
            origin.send_data(spool.read())
            origin.flush()
        if not spool.left and origin is not None:
            self.sent = True
            origin.end_request()
        self.connection.progress(self)

    def may_retry(self, *, unread: bool) -> bool:
        """Whether it can be sent once more. With `unread`, the origin says that it has not read
        it."""
        if unread:
            can_be_sent = self.head.length == 0 or self._kept is not None
            return can_be_sent and self._retries < UNREAD_RETRIES
        return self.head.length == 0 and not self._retries and self.head.method in IDEMPOTENT

    def retry(self, response: Response) -> None:
        """Send it again: the kept connection was closed before the request arrived."""
        self._retries += 1
        self._connect(response)

    def follow(self, response: Response, transfer: Transfer) -> None:
        """Ask another storage host for a large file instead."""
        origin, self.origin = self.origin, None
        if origin is not None:
            origin.drop()
        outbound = response.outbound
        outbound.head, outbound.needles = transfer.head, transfer.needles
        outbound.transfer = transfer
        outbound.pool = transfer.pool(outbound.service)
        outbound.reader = TransferResponseReader(transfer)
        self._connect(response)

    # ── the machine's calls ───────────────────────────────────────────────────────────────────────

    def request_data(self, data: bytes | memoryview) -> None:
        """Bytes of the body, or of a WebSocket. Raises OverLimit or Malformed."""
        stage = self.stage
        if self.canary is not None and self.canary.found_in(data):
            self._note_canary()
        if stage is _RELAY and self.messages is not None:
            self.messages.take(bytes(data))
        elif stage is _RELAY or (stage is _EXCHANGE and not self.head.websocket):
            self.upload(data)
        elif stage is _EXCHANGE:
            raise Malformed("frames of a WebSocket come before the origin has switched")
        elif stage is _COLLECT and self.collecting is not None:
            self.collecting.take(bytes(data))

    def _note_canary(self) -> None:
        """Record that the body has the canary's key. Raises OverLimit if the session is frozen
        now."""
        self.canary = None
        state = self.connection.state
        state.note_decoy(CANARY, self.connection.name)
        if state.frozen:
            raise OverLimit(Decision(reason=Reason.FROZEN, rule=DECOY_RULE))

    def request_ended(self, trailers: Sequence[Field]) -> None:
        """The body is whole. Raises OverLimit or Malformed."""
        if self.stage is _EXCHANGE and self.origin is not None:
            # An HTTP/2 request may declare no body and still end later.
            if not self.sent:
                if self._events is not None:
                    self._events.finish()
                if trailers:
                    self._kept = None  # they are not
                    self.count_up(sum(len(field.line) for field in trailers))
                self.sent = True
                self.origin.end_request(trailers)
        elif self.stage is _COLLECT and self.collecting is not None:
            self.collecting.end()

    def upload(self, data: bytes | memoryview) -> None:
        """Queue bytes for the origin; `flush_request` sends them."""
        size = len(data)
        self.count_up(size)
        self.uploaded += size
        if self.head.length < 0 and self.stage is _EXCHANGE and self.uploaded > self.body_limit:
            raise OverLimit(decide_total("body", 0, self.uploaded, self.body_limit))
        if self._events is not None:
            data = self._events.feed(data, time.time())
        if self.origin is not None and data:
            self._pass_on(self.origin, data)

    def _pass_on(self, origin: AnyOriginConnection, data: bytes | memoryview) -> None:
        if self.uploaded == self.head.length and self.connection.may_have_trailers(self):
            origin.expect_trailers()
        if self._kept is not None:
            self._kept = self._kept + data if self.uploaded <= MAX_KEPT else None
        origin.send_data(data)

    def flush_request(self) -> None:
        """Send the bytes of one read that were queued. A slow origin slows the client."""
        origin = self.origin
        if origin is not None:
            origin.flush()
            if origin.slow:
                self.connection.slow_down(self)

    def send_more(self) -> None:
        """The origin can take more of the request."""
        if self.head.websocket and self.stage is _EXCHANGE:
            return  # nothing is sent before it has switched
        if self._spool is not None and not self.sent:
            self._send_spool(self._spool)
            self.flush_request()
        else:
            self.connection.read_on(self)

    def note_usage(self, service: str) -> Callable[[UsageNote], None]:
        """Records what a response of this service used."""
        connection = self.connection
        return partial(connection.state.note_usage, connection.name, service)

    def count_up(self, amount: int) -> None:
        """Count bytes sent. Raises OverLimit."""
        self.connection.count_up(amount, self.meter)

    def count_down(self, amount: int) -> None:
        """Count bytes received. Raises OverLimit."""
        self.connection.count_down(amount, self.meter)

    # ── the response's calls ──────────────────────────────────────────────────────────────────────

    def relay(self) -> None:
        """The stream has become a WebSocket."""
        self.move(_RELAY)
        with self.connection.resuming(self):
            pass  # frames of the client may be here already

    def end_relay(self) -> None:
        """The origin has ended a WebSocket properly."""
        self.end()
        self.connection.end_relay(self)

    def close_relay(self, why: str) -> None:
        """End a WebSocket, with the reason where the origin's last frame is whole."""
        connection, response = self.connection, self.response
        frames = response.frames if response is not None else None
        if frames is None or not frames.between_frames:
            self.cut(Reason.FEATURE_CLOSED)
            return
        closing = write_close(POLICY_VIOLATION, why)
        connection.channel.queue(connection.machine.send_data(self.number, closing))
        connection.channel.flush()
        self.end_relay()

    def finish(self, pool: str, *, keep: bool, succeeded: bool) -> None:
        """The response is whole. Its connection may be kept in a `pool` for another request."""
        connection, origin, self.origin = self.connection, self.origin, None
        now = connection.loop.time()
        if origin is not None:
            kept = origin.release()
            if kept is not None and keep:
                self.host.pool.keep(pool, kept, now)
            else:
                origin.close()
        if succeeded:
            connection.state.credentialed = now
        self.end()
        connection.finished(self, now)

    def fail(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """Answer with an error, or cut a response that has begun."""
        connection, response = self.connection, self.response
        if self.stage is _OVER or response is None:
            return
        self.end()
        verdict, rule = Verdict.ALLOW, response.decision.rule
        if decision is not None:
            verdict, rule = decision.verdict, decision.rule
        if response.recorded:
            record_further(response, reason, verdict)
        record_request(response, connection.now(), reason, decision)
        if response.begun:
            connection.cut(self, reason)
            return
        # The person learns the host of a large file; the client does not.
        outbound = response.outbound
        place = self.host.origin_of(outbound.transfer)
        connection.state.tell(place.host.name, place.port, reason, why)
        why = why if outbound.transfer is None else ""
        reply = refusal_messages.http_reply(reason, rule, why, form=outbound.form)
        connection.reply(self, reply, close=True)

    def cut(self, reason: str) -> None:
        """End what has begun, by reset; the reason was recorded."""
        self.end()
        self.connection.cut(self, reason)

    # ── refused by the gateway ────────────────────────────────────────────────────────────────────

    def answer(self, reply: Reply) -> None:
        """Answer with this; the request was read whole, so the connection goes on."""
        self.end()
        self.connection.reply(self, reply, close=False)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def abandon(self, reason: str = "") -> None:
        """Abandon the request. `reason` is the recorded one; without it, the client has gone."""
        if self.stage is _OVER:
            return
        collecting, response = self.collecting, self.response
        if response is not None:
            record_request(response, self.connection.now(), Reason.CLIENT_LEFT)
        elif collecting is not None:
            collecting.abandon(reason)
        elif self.stage in (_TOKEN, _ASK) and not reason:
            record_unsent(self, Reason.CLIENT_LEFT)
        origin = self.origin
        if response is not None and response.frames is not None and origin is not None:
            # The end of a WebSocket may just have been sent up.
            self.origin = None
            origin.release()
            origin.close()
        self.end()

    def end(self) -> None:
        """Release everything that the stream holds."""
        self.move(_OVER)
        origin = self.origin
        if origin is not None:
            self.origin = None
            origin.drop()
        # Each is let go of here: a cycle would wait for the garbage collector.
        response, self.response = self.response, None
        if response is not None and response.tally is not None:
            response.settle()
        messages, self.messages = self.messages, None
        if messages is not None:
            messages.forget()
        collecting = self.collecting
        if collecting is not None:
            self.collecting = self._spool = None
            collecting.close()
        leave(self)
        if self._tasks is not None:
            self._tasks.cancel()
