"""An inspected connection: its requests, one after the other.

Made by the door for a host of a service. Protocol callbacks alone; a task only fetches what a
request waits for. Pipelined requests wait in order, and nothing of the next is read before the last
is answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.arrival import Arrival, Phase
from keyhole.gateway.budgets import body_limit, tally_for
from keyhole.gateway.exchange import Exchange
from keyhole.gateway.fetches import FetchBody
from keyhole.gateway.gathering import Body, Gathering
from keyhole.gateway.inquiry import Asking
from keyhole.gateway.largefiles import LargeFileBody
from keyhole.gateway.minting import Minting, Unminted
from keyhole.gateway.origin import Insecure
from keyhole.gateway.pushbody import PushBody
from keyhole.gateway.pushes import Push
from keyhole.gateway.pushing import Pushing, abandoned_events, request_event
from keyhole.gateway.reach import reach
from keyhole.gateway.refusal import Form, Unfit
from keyhole.gateway.remote import RemoteRepository
from keyhole.gateway.session import OverLimit
from keyhole.gateway.tlsside import RECORD
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.policy.budget import PLACE_WAIT
from keyhole.policy.forge import GitEndpoint
from keyhole.policy.limit import Pace, decide_total
from keyhole.system.dialler import AddressRefused, Unreachable, still_allowed
from keyhole.wire.httpbody import ChunkedReader
from keyhole.wire.httpfield import END_OF_HEAD, Malformed, find_end
from keyhole.wire.pktline import FLUSH

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from keyhole.gateway.errand import Errand
    from keyhole.gateway.handle import Shared
    from keyhole.gateway.inspection import Asked, Inspection
    from keyhole.gateway.lfs import Transfer
    from keyhole.gateway.origin import Origin
    from keyhole.gateway.quarantine import Quarantine
    from keyhole.gateway.session import Interception, SessionState
    from keyhole.gateway.tunnel import Bound
    from keyhole.model.decision import RequestDecision
    from keyhole.policy.budget import Meter
    from keyhole.wire.httprequest import RequestHead
    from keyhole.wire.receivepack import PushRequest

BODY_LIMIT = "limits.body"

REQUESTS_AT_ONCE = 16
"""Requests that are refused one after the other before the loop looks at others: a millisecond."""

# A member of an enum that is named by way of its class is looked up each time.
_, _, _HEAD, _GATHER, _BODY, _WAIT, _RELAY, _ = Phase
_ALLOW = Verdict.ALLOW

_TOO_MANY = Decision(reason=Reason.OVER_LIMIT, rule="limits.concurrent_requests")

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Inspected(Arrival):
    """One connection."""

    __slots__ = (
        "_body_limit", "_body_rule", "_busy", "_dials", "_exchange", "_gathering", "_inspection",
        "_interception", "_limits", "_lookup", "_outdated", "_pace", "_queue", "_searched",
        "_shared", "_task",
    )  # fmt: skip

    def __init__(
        self,
        shared: Shared,
        dials: asyncio.Semaphore,
        state: SessionState,
        bound: Bound,
        lookup: Callable[[Bound, Interception], Inspection],
        interception: Interception,
        ended: Callable[[Arrival], None],
    ) -> None:
        """`lookup` finds how requests to the host are judged and dressed at present."""
        super().__init__(shared.loop, state, bound, interception.leaf, ended)
        self._shared = shared
        self._dials = dials
        self._lookup = lookup
        self._inspection = lookup(bound, interception)
        self._interception = interception
        self._limits = state.session.book.policy.limits
        self._outdated = False
        """Whether the next request is to be judged by another policy."""
        self._body_limit = self._limits.body
        """Bytes that the present request's body may have, and who says so."""
        self._body_rule = BODY_LIMIT
        self._busy = False
        """Whether a request of this connection is among those that are counted."""
        self._pace: Pace | None = None
        self._searched = 0
        self._queue: list[bytes | memoryview] = []
        self._exchange: Exchange | None = None
        self._gathering: Body | None = None
        self._task: asyncio.Task[None] | None = None

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def received(self, view: memoryview) -> None:
        """Plain bytes of the client."""
        exchange = self._exchange
        within = exchange is not None and self._phase is _BODY and not self._held
        if within and exchange is not None and len(view) <= exchange.left:
            self._upload(exchange, view)
            return
        data = self._held + view if self._held else bytes(view)
        self._held = b""
        self._advance(data)

    def _advance(self, data: bytes) -> None:
        judged = 0
        try:
            while data:
                phase, exchange = self._phase, self._exchange
                if phase is _HEAD:
                    if self.slow:
                        # Whoever asks and does not read what is answered is not asked on (I9).
                        self._hold(data)
                        return
                    end = find_end(data, self._searched)
                    if end < 0:
                        self._hold_head(data)
                        return
                    self._searched = 0
                    if judged == REQUESTS_AT_ONCE:
                        self._hold(data)
                        self.turn.later(self._next_turn)
                        return
                    judged += 1
                    data = self._request(data[:end], data[end + len(END_OF_HEAD) :])
                elif phase is _WAIT:
                    # Reading stops only now that there is something to hold: a client that
                    # leaves while it waits would not be noticed otherwise.
                    self._hold(data)
                    return
                elif phase is _BODY and exchange is not None:
                    data = exchange.upload(data)
                    self._uploaded(exchange)
                elif phase is _GATHER and self._gathering is not None:
                    data = self._gather(self._gathering, data)
                elif phase is _RELAY and exchange is not None:
                    self.count_up(len(data))
                    exchange.relay_up(data)
                    self._uploaded(exchange)
                    return
                else:
                    return
        except Malformed as error:
            self._refuse_malformed(error.why)
        except OverLimit as error:
            self.over(error.decision)

    def _next_turn(self) -> None:
        """Go on with requests that came together with many others."""
        if self._phase is _HEAD:
            held, self._held = self._held, b""
            self.resume()
            self._advance(held)

    def _upload(self, exchange: Exchange, view: memoryview) -> None:
        """Bytes within a body of known length: encrypted at once, so they need not be copied."""
        try:
            exchange.upload_within(view)
            self._uploaded(exchange)
        except OverLimit as error:
            self.over(error.decision)

    def _hold(self, data: bytes) -> None:
        """Take these up later, and read no further until then."""
        self._held = data
        self.pause()

    def _hold_head(self, data: bytes) -> None:
        if not self._searched:
            self._since = self._loop.time()
        self._held = data
        self._searched = len(data)

    def _request(self, raw: bytes, rest: bytes) -> bytes:
        """Count one request, judge it, and send it on its way; what is behind it comes back."""
        self._requests += 1
        self._state.requested += 1
        self.count_up(len(raw))
        return self._judge(raw, rest)

    def _judge(self, raw: bytes, rest: bytes) -> bytes:
        if self._outdated:
            self._renew()
        state, inspection = self._state, self._inspection
        # 1. Authorise: what is asked, read in the one way there is (I4).
        head = inspection.reader.parse(raw)
        for service in inspection.decoys(raw):
            self._note_decoy(service)
        now = self._loop.time()
        self._seen = (self._up, self._down, now)
        limited = state.requests.take(now)
        if limited.verdict is not _ALLOW:
            return self._refuse_for_now(head, limited, rest, state.requests.wait(now))
        common = self._shared.commons.requests
        if common is not None and (limited := common.take(now)).verdict is not _ALLOW:
            return self._refuse_for_now(head, limited, rest, common.wait(now))
        if state.busy >= self._limits.concurrent_requests:
            return self._refuse_for_now(head, _TOO_MANY, rest, PLACE_WAIT)
        # Attack: fill the disk that the log is on, and go on unseen over what is open (I8).
        if not state.session.admitting():
            return self.refuse_request(head, Decision(), rest, reason=refusal.NOT_ADMITTING)
        decision = inspection.decide(head)
        if decision.verdict is not _ALLOW:
            return self.refuse_request(head, decision, rest)
        if self._busy:
            self._request_over()  # judged again
        state.busy += 1
        self._busy = True
        self._body_limit, self._body_rule = self._limits.body, BODY_LIMIT
        if state.meters:
            refused = self._meter_in(head, decision, len(raw), now)
            if refused is not None:
                return self._refuse_for_now(head, refused[0], rest, refused[1])
        # 2. Validate.
        if head.length > self._body_limit:
            return self._refuse_large(head, decision, rest)
        # 3. Touch: what the request still needs, then the client's credentials off, ours on (I6).
        try:
            asked = inspection.asked(raw, head, decision)
        except Unfit as error:
            return self._refuse_unfit(error, head, decision, rest)
        if isinstance(asked, Minting):
            self._phase = _WAIT
            self._held = rest
            self._start(self._mint(asked, raw, head, decision))
            return b""
        aging = inspection.aging(asked.service)
        if aging is not None:
            aging.renew(self._shared.upstream, self._interception.trust)
        return self._begin(asked, rest)

    def _meter_in(
        self, head: RequestHead, decision: RequestDecision, size: int, now: float
    ) -> tuple[Decision, float] | None:
        """Count a request to its service; else why not, and when to ask again."""
        meter = self._state.meters.get(decision.service or "")
        if meter is None:
            return None
        refused = meter.admit(now, size + max(0, head.length))
        if refused is not None:
            return refused
        self._meter = meter
        meter.count_up(size)
        if head.length:
            most = body_limit(meter, head.word, head.path)
            if most is not None:
                self._body_limit, self._body_rule = most, f"services.{decision.service}.bodies"
        return None

    def _request_over(self) -> None:
        """Another may take its place. It may be said more than once."""
        if self._busy:
            self._busy = False
            self._state.busy -= 1
            meter, self._meter = self._meter, None
            if meter is not None:
                meter.leave()

    def _begin(self, asked: Asked, rest: bytes) -> bytes:
        """Send a request on its way, or take its body first where that must be seen."""
        errand = asked.errand
        if errand is not None:
            body = self._body_of(asked, errand)
            judge = self._interception.judge
            if errand.announces_push and judge is not None:
                judge.prepare()
        else:
            body = Gathering(asked, self._state) if self._inspection.wants_body(asked) else None
        if body is None:
            if errand is not None and asked.head.expects_continue:
                # Storage hosts are asked in the gateway's own words.
                self.send(_CONTINUE)
                asked.head.expects_continue = False
            return self._proceed(asked, None, rest)
        self._phase = _GATHER
        self._gathering = body
        if asked.head.expects_continue:
            self.send(_CONTINUE)
        return self._gather(body, rest)

    def _body_of(self, asked: Asked, errand: Errand) -> Body | None:
        """The body of a request of git's, where that must be seen."""
        state = self._state
        if errand.endpoint is GitEndpoint.FETCH:
            return FetchBody(asked, state, errand.version, gzip=errand.gzip)
        if errand.endpoint is GitEndpoint.PUSH:
            return PushBody(asked, state, self._interception.quarantine, self.count_up)
        large = errand.large
        if large is not None and large.wants_body(asked.head.method):
            return LargeFileBody(asked, state, self._inspection)
        return Gathering(asked, state) if self._inspection.wants_body(asked) else None

    def _proceed(
        self, asked: Asked, digest: str | None, rest: bytes, spool: Quarantine | None = None
    ) -> bytes:
        """Write the request anew and send it to the origin."""
        head, decision = asked.head, asked.decision
        try:
            dressed = self._inspection.dress(asked, digest)
        except Unfit as error:
            return self._refuse_unfit(error, head, decision, rest)
        exchange = self._exchange = Exchange(self, head, decision, dressed, spool)
        if self._meter is not None:
            exchange.tally = tally_for(self._meter, self._inspection.usage(asked.service))
        self._phase = _WAIT
        origin = self._inspection.take_idle(exchange.pool)
        if origin is None:
            self._held = rest
            self.dial(exchange)
            return b""
        return self._attach(exchange, origin, rest)

    def _gather(self, body: Body, data: bytes) -> bytes:
        """Take bytes of a body; once it is whole, go on."""
        asked = body.asked
        try:
            rest = body.feed(data, self._body_limit)
            if isinstance(body, PushBody):
                return self._gather_push(body, rest)
            if not body.done or not isinstance(body, Gathering):
                return rest
            if isinstance(body, FetchBody) and body.large:
                self._phase = _WAIT
                self._held = rest
                self._start(self._read_apart(body))
                return b""
            whole = body.finish()
        except Unfit as error:
            self._forsake(error.reason)
            return self._refuse_unfit(error, asked.head, asked.decision, b"")
        return self._proceed(whole.asked, whole.digest, whole.body + rest)

    async def _read_apart(self, body: FetchBody) -> None:
        """Read a long body where it holds nobody up; the connection is not read from meanwhile."""
        try:
            whole = await body.finish_apart(self._loop, self._shared.fetches)
        except Unfit as error:
            self.go_on_with(partial(self._refuse_gathered, body, error))
            return
        self.go_on_with(lambda rest: self._proceed(whole.asked, whole.digest, whole.body + rest))

    def _refuse_gathered(self, body: Body, error: Unfit, rest: bytes) -> bytes:
        self._forget_body()
        return self._refuse_unfit(error, body.asked.head, body.asked.decision, b"")

    def _attach(self, exchange: Exchange, origin: Origin, data: bytes) -> bytes:
        origin.turn = self.turn
        rest = exchange.attach(origin, data)
        self._phase = _BODY if exchange.wants_body() else _WAIT
        if origin.slow:
            self.pause()
        return rest

    def _uploaded(self, exchange: Exchange) -> None:
        if exchange.sent and self._phase is _BODY:
            self._phase = _WAIT
        if exchange.origin_is_slow():
            self.pause()

    def chunks(self) -> ChunkedReader:
        """A reader for a request's chunks."""
        return ChunkedReader(self._inspection.surgery.treat)

    def check_body(self, total: int) -> None:
        """A body of unknown length grows. Raises OverLimit."""
        if total > self._body_limit:
            raise OverLimit(decide_total("body", 0, total, self._body_limit))

    # ── another policy ────────────────────────────────────────────────────────────────────────────

    def change(self, bound: Bound, interception: Interception) -> None:
        """The next request goes by the new policy; one on its way goes on if that allows it."""
        super().change(bound, interception)
        self._outdated = True
        self._limits = self._state.session.book.policy.limits
        exchange, body = self._exchange, self._gathering
        if exchange is not None:
            inspection = self._lookup(bound, interception)
            stays = exchange.may_stay(inspection, self._state.session.book)
            if not stays or not exchange.search_for(inspection.needles()):
                exchange.failed(refusal.POLICY_CHANGED, "", Decision())
                return
            meter = self._count_from_now(exchange.service)
            if meter is not None and exchange.tally is None:
                exchange.join(tally_for(meter, inspection.usage(exchange.service)))
        elif body is not None:
            self._renew()
            again = self._inspection.judge_again(body.asked)
            if again is not None:
                body.asked = again
                self._count_from_now(again.service)
                return
            head = body.asked.head
            self._forsake(refusal.POLICY_CHANGED)
            self.refuse_request(head, Decision(), b"", reason=refusal.POLICY_CHANGED)

    def _count_from_now(self, service: str) -> Meter | None:
        """A budget that is new is one of what is under way, too: a WebSocket may last for days."""
        meter = self._state.meters.get(service)
        if meter is not None and self._meter is None and self._busy:
            meter.join()
            self._meter = meter
        return self._meter

    def _renew(self) -> None:
        """Nothing of a request is under way: go by what is in force."""
        interception = self._state.session.interception
        if interception is not None:
            self._outdated = False
            self._interception = interception
            self._inspection = self._lookup(self._bound, interception)

    def now(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def succeeded(self) -> None:
        """A request with a credential was answered with success."""
        self._state.credentialed = self._loop.time()

    # ── pushes ────────────────────────────────────────────────────────────────────────────────────

    def _gather_push(self, body: PushBody, rest: bytes) -> bytes:
        """Judge a push as soon as its list of commands is here; its pack may come meanwhile."""
        request, errand = body.request, body.asked.errand
        if request is None or errand is None:
            return rest
        if request.is_probe:
            return self._answer_probe(body, rest) if body.done else rest
        if not body.judging:
            if body.straight and (request.shallow or not request.has_pack):
                # Nothing may follow a list without a pack, and what is cut off must be looked at.
                raw = body.as_it_came()
                body.read_anew(judged=True)
                return self._gather(body, raw)
            body.judging = True
            if body.straight:
                self._held, rest = body.as_it_came(), b""
                self._phase = _WAIT
            self._start(self._pushing(body, request, errand).run())
        if body.done:
            self._phase = _WAIT
        return rest

    def _answer_probe(self, body: PushBody, rest: bytes) -> bytes:
        """With an empty list git tries the way before a large push: nothing is to be changed."""
        if body.size != len(FLUSH):
            raise Malformed("something follows an empty list of commands")
        self.note(request_event(body, self.host, body.asked.decision))
        return self.answer_push(body, b"", rest)

    def _pushing(self, body: PushBody, request: PushRequest, errand: Errand) -> Pushing:
        asked, inspection = body.asked, self._inspection
        asking = Asking(
            self._loop,
            self._shared.upstream,
            lambda: self._state.session.book,
            self._interception.trust,
            inspection,
        )
        remote = RemoteRepository(asking, inspection, asked.service, errand.path)
        service, judge = inspection.service(asked.service), self._interception.judge
        push = Push(service, errand.grant, request, remote, judge)
        return Pushing(self, self._state, body, request, push)

    def read_again(self, body: PushBody) -> None:
        """Read a body from its start, of which all that came is held."""
        self._phase = _GATHER
        self.go_on_with(partial(self._gather, body))

    def send_on(self, asked: Asked, rest: bytes, spool: Quarantine | None) -> bytes:
        """Send a push that may go: from quarantine, or as it comes."""
        if spool is None:
            self._forget_body()
        return self._proceed(asked, None, rest, spool)

    def answer_push(self, body: PushBody, text: bytes, rest: bytes) -> bytes:
        """Answer a push ourselves; all of it was read."""
        self._forget_body()
        self._request_over()
        reply = refusal.push_reply(text)
        if body.asked.head.close:
            self._last_words(reply)
            return b""
        self._phase = _HEAD
        self.send(reply)
        return rest

    # ── how long it may take ──────────────────────────────────────────────────────────────────────

    def progress(self) -> None:
        """Something of a push that waited here was taken."""
        self._since = self._loop.time()

    def end_if_slow(self, now: float) -> None:
        """End it when whoever is waited for moves too little (I9)."""
        whose, moved = self._waits_for()
        pace = self._pace
        if pace is None:
            if not whose:
                return
            pace = self._pace = Pace()
        if not pace.lags(whose, moved, now, self._limits.body_time):
            return
        exchange = self._exchange
        if whose == refusal.UPSTREAM_SLOW and exchange is not None:
            exchange.failed(whose, "")
            return
        if exchange is not None:
            exchange.record(whose)
        self.cut(whose)

    def _waits_for(self) -> tuple[str, int]:
        """Who holds a body up, if anyone, and how far it has come. What an origin says is not
        hurried: models think."""
        exchange, transport = self._exchange, self.transport
        if self.slow and transport is not None:
            return refusal.CLIENT_SLOW, self._down - transport.get_write_buffer_size()
        if self._phase is _BODY and exchange is not None and exchange.origin_is_slow():
            return refusal.UPSTREAM_SLOW, self._up
        return (refusal.CLIENT_SLOW if self._phase in (_BODY, _GATHER) else ""), self._up

    # ── what a request waits for ──────────────────────────────────────────────────────────────────

    def dial(self, exchange: Exchange) -> None:
        """Get a connection to the origin for an exchange."""
        self._start(self._dial(exchange))

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = self._task = self._loop.create_task(work)
        task.add_done_callback(self._worked)

    async def _dial(self, exchange: Exchange) -> None:
        try:
            async with self._dials:
                origin = await reach(
                    self._loop,
                    self._shared.upstream,
                    self._state.session.book,
                    self._interception.trust,
                    self._inspection.destination(exchange.transfer),
                )
        except AddressRefused as error:
            exchange.failed(error.decision.reason, "", error.decision)
            return
        except Unreachable as error:
            exchange.failed(error.reason, str(error), error.decision)
            return
        except Insecure as error:
            exchange.failed(error.reason, str(error))
            return
        if self._exchange is not exchange:
            origin.abort()
            return
        place = self._inspection.destination(exchange.transfer)
        book = self._state.session.book
        if not still_allowed(book, place.host, place.port, origin.address):
            # The policy has changed while it was dialled.
            origin.abort()
            exchange.failed(refusal.POLICY_CHANGED, "", Decision())
            return
        self.go_on_with(partial(self._attach, exchange, origin))

    async def _mint(
        self, minting: Minting, raw: bytes, head: RequestHead, decision: RequestDecision
    ) -> None:
        try:
            await minting.fetch(self._shared.upstream, self._interception.trust)
        except Unminted as error:
            if self._outdated:
                self.go_on_with(partial(self._judge, raw))
                return
            self.go_on_with(partial(self._refuse_unminted, head, decision, str(error)))
            return
        if self._outdated:
            self.go_on_with(partial(self._judge, raw))
            return
        try:
            asked = self._inspection.asked(raw, head, decision)
        except Unfit as error:
            self.go_on_with(partial(self._refuse_unfit, error, head, decision))
            return
        if isinstance(asked, Minting):
            why = "the token ends as soon as it is there"
            self.go_on_with(partial(self._refuse_unminted, head, decision, why))
        else:
            self.go_on_with(partial(self._begin, asked))

    def _refuse_unminted(
        self, head: RequestHead, decision: RequestDecision, why: str, rest: bytes
    ) -> bytes:
        reason = refusal.CREDENTIAL_UNAVAILABLE
        return self.refuse_request(head, decision, rest, reason=reason, why=why)

    def go_on_with(self, work: Callable[[bytes], bytes]) -> None:
        """Take up what was held while something was fetched."""
        held, self._held = self._held, b""
        try:
            rest = work(held)
        except Malformed as error:
            self._refuse_malformed(error.why)
            return
        except OverLimit as error:
            self.over(error.decision)
            return
        if not self._held:
            if self._exchange is None or not self._exchange.origin_is_slow():
                self.resume()
            self._advance(rest)

    def _worked(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._loop.call_exception_handler({"message": "a fault of ours", "exception": fault})
            self.cut(refusal.INTERNAL)

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    def queue(self, data: bytes | memoryview) -> None:
        """Send this with the next flush."""
        self._queue.append(data)

    def flush(self) -> None:
        """Send what was queued, as one."""
        queue = self._queue
        if queue:
            data, before = queue[-1], b""
            if len(queue) > 1:
                if len(data) > RECORD and sum(map(len, queue)) - len(data) <= RECORD:
                    before = b"".join(queue[:-1])
                else:
                    data = b"".join(queue)
            queue.clear()
            self.send(data, before)

    def answered(self, *, close: bool, succeeded: bool) -> None:
        """The answer is whole: the next request may be read."""
        now = self._loop.time()
        if succeeded:
            self._state.credentialed = now
        self.flush()
        self._exchange = None
        self._request_over()
        if self._gathering is not None:
            self._forget_body()
        if close:
            self._leave()
            return
        self._phase = _HEAD
        self._since = now
        self.resume()
        if self._held:
            held, self._held = self._held, b""
            self._advance(held)

    def keep(self, origin: Origin, pool: str) -> None:
        """Keep an origin's connection for the next request."""
        origin.resume()
        self._inspection.keep_idle(pool, origin, self._loop.time())

    def go_on(self) -> None:
        """The origin takes more, or has become a WebSocket's."""
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.relays and self._phase is not _RELAY:
            self._phase = _RELAY
            held, self._held = self._held, b""
            if held:
                self._advance(held)
        if not (self._phase is _WAIT and self._held):
            self.resume()

    def caught_up(self) -> None:
        """The client takes more."""
        if self._exchange is not None:
            self._exchange.client_caught_up()
        else:
            self._next_turn()

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────

    def refuse(
        self,
        reason: str,
        decision: Decision,
        why: str,
        *,
        body: bool,
        form: Form,
        transfer: Transfer | None = None,
    ) -> None:
        """No answer came from the origin: give one ourselves, and close."""
        self._exchange = None
        self._request_over()
        self._forget_body()
        # Of a large file the person learns where it is, and the client does not.
        place = self._inspection.destination(transfer)
        self._state.tell(place.host.name, place.port, reason, why)
        why = why if transfer is None else ""
        self._last_words(refusal.http_reply(reason, decision.rule, why, body=body, form=form))

    def refuse_request(
        self,
        head: RequestHead,
        decision: Decision,
        rest: bytes,
        extra: str = "",
        *,
        reason: str = "",
        why: str = "",
    ) -> bytes:
        """Answer a request that is not sent; without a body, the connection goes on."""
        reason = reason or decision.reason
        word = head.word or head.method
        details = (("method", word), ("path", head.path))
        rule = decision.rule
        self.note(Event(EventKind.REQUEST, Verdict.DENY, reason, rule, self.host, details))
        self._forget_body()
        self._request_over()
        if reason != Reason.OVER_BUDGET:
            self._state.tell_request(word, self.host, head.path, reason)
        why = why or refusal.request_why(word, self.host, head.path, reason)
        close = head.close or head.length != 0 or head.websocket
        body = head.method != "HEAD"
        form = self._inspection.form(head)
        reply = refusal.http_reply(
            reason, rule, why, close=close, extra=extra, body=body, form=form
        )
        if close:
            self._last_words(reply)
            return b""
        self._phase = _HEAD
        self.send(reply)
        return rest

    def _refuse_for_now(
        self, head: RequestHead, decision: Decision, rest: bytes, wait: float
    ) -> bytes:
        """Refuse by a limit; without a `wait` asking again does not help."""
        if wait:
            return self.refuse_request(head, decision, rest, f"Retry-After: {1 + int(wait)}\r\n")
        self._state.tell(decision.rule, 0, decision.reason)
        why = f"{decision.rule} is used up in this session; asking again does not help"
        return self.refuse_request(head, decision, rest, why=why)

    def _refuse_large(self, head: RequestHead, decision: Decision, rest: bytes) -> bytes:
        own = self._body_rule != BODY_LIMIT
        said = Decision(rule=self._body_rule) if own else decision
        why = f"the body is over {self._body_rule}" if own else ""
        return self.refuse_request(head, said, rest, reason=refusal.BODY_TOO_LARGE, why=why)

    def _refuse_unfit(
        self, error: Unfit, head: RequestHead, decision: Decision, rest: bytes
    ) -> bytes:
        said = Decision(rule=error.rule) if error.rule else decision
        return self.refuse_request(head, said, rest, reason=error.reason, why=error.why)

    def _refuse_malformed(self, why: str) -> None:
        """RFC 9112 §2.2: answered with 400, and the connection is closed."""
        reason, rule = refusal.HTTP_MALFORMED, self._bound.decision.rule
        if self._exchange is not None:
            # In a body whose answer may be on its way: a 400 must not come in the midst of it.
            self._exchange.failed(reason, why, Decision(rule=rule))
            return
        self._forsake(reason)
        details = (("why", why),)
        self.note(Event(EventKind.REQUEST, Verdict.DENY, reason, rule, self.host, details))
        self._state.tell(self.host, self._bound.port, reason)
        self._last_words(refusal.http_reply(reason, rule, why))

    def _note_decoy(self, service: str) -> None:
        """A placeholder stands for nothing here; somebody tries what it opens (I1)."""
        rule = f"services.{service}"
        self.note(Event(EventKind.DECOY, Verdict.DENY, refusal.DECOY_USED, rule, self.host))

    def _last_words(self, reply: bytes) -> None:
        self._queue.clear()
        self.send(reply)
        self._leave()

    def over(self, decision: Decision) -> None:
        """A limit on bytes is reached: everything of this connection ends."""
        exchange, gathering = self._exchange, self._gathering
        of_body = decision.rule == BODY_LIMIT
        if of_body and self._body_rule != BODY_LIMIT:
            decision = Decision(reason=decision.reason, rule=self._body_rule)
        self._state.over_limit(decision, self.host)
        if of_body and exchange is not None:
            exchange.failed(refusal.BODY_TOO_LARGE, f"the body is over {decision.rule}", decision)
        elif of_body and gathering is not None:
            self._forsake(refusal.BODY_TOO_LARGE)
            self.refuse_request(gathering.asked.head, decision, b"", reason=refusal.BODY_TOO_LARGE)
        else:
            if exchange is not None:
                exchange.record(decision.reason, decision)
            self.cut(decision.reason)

    def _forsake(self, reason: str = "") -> None:
        """Let go of a request in flight. Without a `reason`, which the caller has written down of
        it, its client is gone."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abandon()
        elif isinstance(self._gathering, PushBody):
            for event in abandoned_events(self._gathering, self.host, reason):
                self.note(event)
        self._forget_body()
        self._request_over()
        if self._task is not None:
            self._task.cancel()
        self._queue.clear()

    def _forget_body(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is not None:
            gathering.forget()
