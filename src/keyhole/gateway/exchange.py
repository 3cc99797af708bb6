"""One request and its answer: the body up, the answer down, and what is written down of it.

Made by `inspected.py` for a request that policy allowed. Fed by both ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.answer import Answer
from keyhole.gateway.errand import Unauthorized
from keyhole.gateway.largefiles import Elsewhere, TransferReading
from keyhole.gateway.relay import FrameScan
from keyhole.gateway.session import OverLimit
from keyhole.inject.encoded import Reflected, Undecodable
from keyhole.model.decision import Decision, Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.rule import BODILESS
from keyhole.system.dialler import still_allowed
from keyhole.wire.httpfield import Malformed
from keyhole.wire.websocket import accept_for

if TYPE_CHECKING:
    from keyhole.gateway.budgets import Tally
    from keyhole.gateway.inspected import Inspected
    from keyhole.gateway.inspection import Dressed, Inspection
    from keyhole.gateway.lfs import Transfer
    from keyhole.gateway.origin import Origin
    from keyhole.gateway.quarantine import Quarantine
    from keyhole.inject.scrub import Needles
    from keyhole.model.decision import RequestDecision
    from keyhole.policy.rulebook import Rulebook
    from keyhole.wire.httpfield import Field
    from keyhole.wire.httprequest import RequestHead
    from keyhole.wire.httpresponse import ResponseHead

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""RFC 9110 §9.2.2: what may be sent again when a kept connection turns out to be closed."""

_REQUEST = EventKind.REQUEST
_CONTINUE = 100
_SWITCHING = 101
_SUCCESS = 200
_PARTIAL = 206
_REDIRECTS = 300
_ERRORS = 400


class Exchange:
    """A request in flight."""

    __slots__ = (
        "_answer", "_begun", "_catalogued", "_client", "_credentialed", "_decision", "_early",
        "_form", "_frames", "_grant", "_head", "_message", "_needles", "_origin", "_ranges",
        "_reader", "_reading", "_recorded", "_retried", "_since", "_spool", "_total",
        "_websocket_key", "left", "method", "pool", "sent", "service",
        "status", "tally", "trailers", "transfer",
    )  # fmt: skip

    def __init__(
        self,
        client: Inspected,
        head: RequestHead,
        decision: RequestDecision,
        dressed: Dressed,
        spool: Quarantine | None = None,
    ) -> None:
        """With a `spool`, the body is read from there and not from the client."""
        self.method = head.method
        self.service = dressed.service
        self.status = 0
        self.trailers: list[Field] = []
        self._client: Inspected | None = client
        self._head = head
        self._decision = decision
        self._message = dressed.message
        self._needles = dressed.needles
        self._ranges = dressed.ranges
        self._websocket_key = dressed.websocket_key
        self._form = dressed.form
        self._reading = dressed.reading
        self._credentialed = dressed.credentialed
        self._grant = dressed.grant
        self._catalogued = dressed.catalogued
        self._early = False
        """Whether the answer began before all of the request had gone up."""
        transfer = self.transfer = dressed.transfer
        """Where it goes instead of to its own host."""
        self.pool = dressed.service if transfer is None else _pool(dressed.service, transfer)
        """Whose kept connections can serve it."""
        self._spool = spool
        self._origin: Origin | None = None
        self._answer: Answer | None = None
        self._begun = False
        self._frames: FrameScan | None = None
        self._reader = client.chunks() if head.length < 0 else None
        self.left = head.length
        """Bytes of a body of known length that are still to come."""
        self._total = 0
        self.sent = head.length == 0
        """Whether all of the request has gone up."""
        self._recorded = False
        self._retried = False
        self._since = client.now()
        self.tally: Tally | None = None
        """Who counts its tokens."""

    # ── up ────────────────────────────────────────────────────────────────────────────────────────

    def wants_body(self) -> bool:
        """Whether the client's next bytes belong to it."""
        return not self.sent and self._spool is None

    @property
    def begun(self) -> bool:
        """Whether the client has got a part of its answer: nothing else can be said any more."""
        return self._begun or self._frames is not None

    @property
    def relays(self) -> bool:
        """Whether it has become a WebSocket."""
        return self._frames is not None

    def origin_is_slow(self) -> bool:
        """Whether the client must wait."""
        return self._origin is not None and self._origin.slow

    def attach(self, origin: Origin, first: bytes) -> bytes:
        """Send the request and what is here of its body; what is behind it comes back."""
        self._origin = origin
        if self.tally is not None:
            self.tally.sent = True
        origin.serve(self)
        if self._spool is not None:
            self._message, message = b"", self._message
            origin.send(message)
            self._unspool(self._spool)
            return first
        body, rest = self._take(first) if first and not self.sent else (b"", first)
        message = self._message
        if not self._may_retry():
            self._message = b""
        origin.send(message + body if body else message)
        return rest

    def _unspool(self, spool: Quarantine) -> None:
        """Send what was judged, as fast as the origin takes it."""
        while spool.left and self._origin is not None and not self._origin.slow:
            self._origin.send(spool.read())
        self.sent = not spool.left
        if self._client is not None:
            self._client.progress()

    def upload(self, data: bytes) -> bytes:
        """Send bytes of the body on; what follows the request comes back."""
        body, rest = self._take(data)
        if body and self._origin is not None:
            self._origin.send(body)
        return rest

    def upload_within(self, view: memoryview) -> None:
        """Send bytes of the body on, of which there are no more than are left."""
        client, origin = self._client, self._origin
        if client is None or origin is None:
            return
        client.count_up(len(view))
        self.left -= len(view)
        self.sent = not self.left
        origin.send(view)

    def _take(self, data: bytes) -> tuple[bytes, bytes]:
        """What goes up of these bytes, framed, and what is behind the request. Raises Malformed."""
        client = self._client
        if client is None:
            return b"", b""
        if self._reader is None:
            if len(data) > self.left:
                body, rest = data[: self.left], data[self.left :]
            else:
                body, rest = data, b""
            self.left -= len(body)
            self.sent = not self.left
            client.count_up(len(body))
            return body, rest
        body = self._reader.feed(data)
        self._total += len(body)
        client.count_up(len(body))
        client.check_body(self._total)
        framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        if not self._reader.done:
            return framed, b""
        self.sent = True
        trailers = b"".join(field.line for field in self._reader.trailers)
        return b"%b0\r\n%b\r\n" % (framed, trailers), self._reader.rest

    def relay_up(self, data: bytes) -> None:
        """Bytes of a WebSocket, as they are."""
        if self._origin is not None:
            self._total += len(data)
            self._origin.send(data)

    def origin_caught_up(self) -> None:
        """The origin takes more."""
        if self._spool is not None and not self.sent:
            self._unspool(self._spool)
        elif self._client is not None:
            self._client.go_on()

    def client_caught_up(self) -> None:
        """The client takes more."""
        if self._origin is not None:
            self._origin.resume()

    def may_stay(self, inspection: Inspection, book: Rulebook) -> bool:
        """Whether another policy lets it go on, as what and to where it goes."""
        decision = inspection.decide(self._head)
        if not decision.allowed or decision.service != self.service:
            return False
        if self._grant is not None and inspection.service(self.service).git != self._grant:
            return False
        place, origin = inspection.destination(self.transfer), self._origin
        return origin is None or still_allowed(book, place.host, place.port, origin.address)

    def join(self, tally: Tally | None) -> None:
        """Have its tokens counted from here on."""
        if tally is not None:
            tally.join(self._total)
            self.tally = tally

    def search_for(self, needles: Needles) -> bool:
        """Search for these, too, in what still comes; False where that cannot be done."""
        if self._needles is not needles:
            # Of a transfer, which has its own: what was lent for it is searched for as well.
            self._needles.become((self._needles, needles))
        return not needles or self._answer is None or not self._answer.blind

    # ── down ──────────────────────────────────────────────────────────────────────────────────────

    def interim(self, head: ResponseHead) -> None:
        """An answer before the answer."""
        client = self._client
        unexpected = head.status == _CONTINUE and not self._head.expects_continue
        # Of an answer that is read on its way, nothing passes that is not.
        if client is None or self._head.http10 or unexpected or self._reading is not None:
            return
        text = b"".join([head.start, *head.lines, b"\r\n"])
        client.count_down(len(text))
        client.queue(self._needles.replace(text) if self._needles else text)

    def answered(self, head: ResponseHead, body: bytes | None = None) -> None:
        """The answer's head; with its body when that has come whole."""
        client = self._client
        if client is None:
            return
        self.status = head.status
        self._early = not self.sent
        if body is None and self._credentialed and _SUCCESS <= head.status < _ERRORS:
            client.succeeded()  # and once more when it is whole, which may be much later
        if self.tally is not None:
            self.tally.begin(head)
        if head.status == _SWITCHING:
            self._switch(client, head)
            return
        if head.status == _PARTIAL and self._needles and not self._ranges:
            # Nobody asked for it in a way that is known; a secret in two pieces is not seen (I7).
            self.failed(refusal.ENCODING_REFUSED, "the origin sends a piece of an answer")
            return
        rewriter = None
        if self._reading is not None:
            try:
                rewriter = self._reading.read(head)
            except Malformed as error:
                self.failed(refusal.UPSTREAM_MALFORMED, error.why)
                return
            except Unauthorized:
                self.failed(refusal.CREDENTIAL_REFUSED, "")
                return
            except Elsewhere as error:
                self._follow(client, error.transfer)
                return
        # A request that is not read to its end leaves bytes that would be the next one's head.
        close = self._head.close or (not self.sent and self._spool is None)
        try:
            answer = Answer(head, self._needles, self._head.http10, close, rewriter)
        except Undecodable as error:
            self.failed(refusal.ENCODING_REFUSED, str(error))
            return
        self._answer = answer
        if self._reading is None or not self._reading.whole:
            self._begin(client, answer, body)
        elif body is not None:
            self.body(body)

    def _begin(self, client: Inspected, answer: Answer, body: bytes | None = None) -> None:
        """Say the first of an answer."""
        self._begun = True
        self.record()
        if body is None:
            text = answer.begin()
        else:
            if self.tally is not None:
                self.tally.feed(body)
            try:
                text = answer.whole(body)
            except (Reflected, Undecodable, Malformed) as error:
                self._cut_answer(error)
                return
        client.count_down(len(text))
        client.queue(text)

    def _follow(self, client: Inspected, transfer: Transfer) -> None:
        """An object is somewhere else; the client must not learn where (I1)."""
        self._drop(self._origin)
        self._origin = None
        self.transfer = transfer
        self.pool = _pool(self.service, transfer)
        self._message, self._needles = transfer.message, transfer.needles
        self._reading = TransferReading(transfer)
        client.dial(self)

    def _switch(self, client: Inspected, head: ResponseHead) -> None:
        """RFC 6455 §4.1: relayed only after the very answer to our key, without extensions."""
        right = (
            self._websocket_key
            and head.upgrade == b"websocket"
            and head.websocket_accept == accept_for(self._websocket_key)
            and not head.websocket_extensions
        )
        if not right:
            self.failed(refusal.UPSTREAM_MALFORMED, "the answer to a WebSocket handshake is wrong")
            return
        self._frames = FrameScan(self._needles)
        lines = [head.start, *head.lines, b"Connection: Upgrade\r\nUpgrade: websocket\r\n"]
        lines.append(b"Sec-WebSocket-Accept: %b\r\n" % head.websocket_accept)
        if head.websocket_protocol:
            lines.append(b"Sec-WebSocket-Protocol: %b\r\n" % head.websocket_protocol)
        client.queue(self._needles.replace(b"".join([*lines, b"\r\n"])))
        client.flush()
        if self._credentialed:
            client.succeeded()
        self.record()
        client.go_on()

    def body(self, data: bytes | memoryview) -> None:
        """Bytes of the answer; a view is used up by the next `flush`."""
        client, answer = self._client, self._answer
        if client is None or answer is None:
            return
        client.count_down(len(data))
        if self.tally is not None:
            self.tally.feed(data)
        try:
            pieces = answer.body(data)
        except (Reflected, Undecodable, Malformed) as error:
            self._cut_answer(error)
            return
        for piece in pieces:
            if piece:
                client.queue(piece)

    def relayed(self, data: bytes) -> None:
        """Bytes of a WebSocket from the origin: passed once they are known to hold no secret."""
        client, frames = self._client, self._frames
        if client is None or frames is None:
            return
        client.count_down(len(data))
        try:
            passed = frames.feed(data, self._read_message if self.tally is not None else None)
        except (Reflected, Malformed) as error:
            self._cut_answer(error)
            return
        if passed:
            client.send(passed)
            if client.slow and self._origin is not None:
                self._origin.pause()

    def _read_message(self, payload: bytes, ends: bool) -> None:
        """What a WebSocket's messages say of tokens. Raises OverLimit."""
        if self.tally is not None:
            spent = self.tally.message(payload, ends=ends, sent=self._total)
            if spent is not None:
                raise OverLimit(spent)

    def _settle(self, *, whole: bool = False) -> None:
        """The tokens that it took are known now, or never will be."""
        tally, self.tally = self.tally, None
        if tally is None:
            return
        if self._frames is not None:
            tally.end_messages(self._total)
        else:
            tally.end(max(self._head.length, self._total), whole=whole)

    def flush(self) -> None:
        """Send what was queued for the client."""
        client = self._client
        if client is not None:
            client.flush()
            if client.slow and self._origin is not None:
                self._origin.pause()

    def complete(self, *, reusable: bool) -> None:
        """The answer is whole."""
        client, answer, origin = self._client, self._answer, self._origin
        if client is None or answer is None:
            return
        try:
            rest = answer.end(self.trailers if self._reading is None else ())
        except (Reflected, Undecodable, Malformed) as error:
            self._cut_answer(error)
            return
        if self.tally is not None:
            self._settle(whole=True)
        if not self._begun:
            self._begin(client, answer)
        if rest:
            client.queue(rest)
        if answer.hits:
            self._note(refusal.SECRET_SCRUBBED, Verdict.ALLOW)
        self._client = self._origin = None
        if origin is not None:
            origin.release()
            if reusable and self._leaves_nothing():
                client.keep(origin, self.pool)
            else:
                origin.close()
        succeeded = self._credentialed and self.status < _ERRORS
        client.answered(close=answer.closes, succeeded=succeeded)

    def _leaves_nothing(self) -> bool:
        """Whether the origin has surely read all of the request, so that it may get another (I4).

        Attack: the origin answers and leaves the body unread, and takes it for the next request. If
        that one announces a body, the next request that was judged becomes it, with its injected
        header, and ends in whatever the smuggled one stores. Servers do not read bodies when they
        redirect, refuse or answer early, nor where HTTP defines none; whether a server of the
        user's own reads those that it accepts is not known.
        """
        if self._head.length == 0:
            return not self._head.websocket
        return (
            self._catalogued
            and self.sent
            and not self._early
            and self.status < _REDIRECTS
            and self.method not in BODILESS
        )

    # ── when it does not work ─────────────────────────────────────────────────────────────────────

    def _may_retry(self) -> bool:
        return not self._retried and self._head.length == 0 and self.method in IDEMPOTENT

    def origin_lost(self, *, stale: bool) -> None:
        """The origin is gone before its answer was whole."""
        client, self._origin = self._client, None
        if client is None:
            return
        if stale and self._answer is None and self._may_retry():
            self._retried = True
            client.dial(self)
            return
        self.failed(refusal.UPSTREAM_CLOSED, "the origin closed the connection before it answered")

    def failed(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """No answer can be given: say so, or cut what has begun."""
        client, self._client = self._client, None
        origin, self._origin = self._origin, None
        self._drop(origin)
        self._settle()
        if client is None:
            return
        self._client = client
        spoken = self._allowed if decision is None else decision
        if self._recorded:
            self._note(reason, spoken.verdict)
        self.record(reason, decision)
        self._client = None
        if self.begun:
            client.cut(reason)
        else:
            body = self.method != "HEAD"
            client.refuse(reason, spoken, why, body=body, form=self._form, transfer=self.transfer)

    def over(self, decision: Decision) -> None:
        """A limit on bytes is reached."""
        client, self._client = self._client, None
        origin, self._origin = self._origin, None
        self._drop(origin)
        self._settle()
        if client is not None:
            client.over(decision)

    def abandon(self) -> None:
        """The client is gone."""
        if not self._recorded:
            self.record(refusal.CLIENT_LEFT)
        self._settle()
        self._client = None
        origin, self._origin = self._origin, None
        if self._frames is not None and origin is not None:
            # A WebSocket's goodbye may just have been sent up.
            origin.release()
            origin.close()
        else:
            self._drop(origin)

    def relay_ended(self) -> None:
        """The origin has ended a WebSocket properly."""
        self._settle()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _cut_answer(self, error: Exception) -> None:
        reason = refusal.UPSTREAM_MALFORMED
        if isinstance(error, Reflected):
            reason = refusal.SECRET_REFLECTED
        elif isinstance(error, Undecodable):
            reason = refusal.ENCODING_REFUSED
        if not self.begun:
            self.failed(reason, str(error))
            return
        self._note(reason, Verdict.DENY)
        self._settle()
        client, self._client = self._client, None
        origin, self._origin = self._origin, None
        self._drop(origin)
        if client is not None:
            client.cut(reason)

    @staticmethod
    def _drop(origin: Origin | None) -> None:
        if origin is not None:
            origin.release()
            origin.abort()

    # ── what is written down ──────────────────────────────────────────────────────────────────────

    @property
    def _allowed(self) -> Decision:
        return Decision(Verdict.ALLOW, self._decision.reason, self._decision.rule)

    def record(self, reason: str = "", decision: Decision | None = None) -> None:
        """One event per request: with its status, or with why there is none."""
        client = self._client
        if client is None or self._recorded:
            return
        self._recorded = True
        spoken = self._decision if decision is None else decision
        details: tuple[tuple[str, str | int], ...] = (
            ("method", self._head.word),
            ("path", self._head.path),
            ("service", self.service),
        )
        if self.transfer is not None:
            large = self.transfer.large
            details += (("storage", self.transfer.host.name), ("oid", large.oid))
            details += (("size", large.size),)
        if self.status:
            waited = int((client.now() - self._since) * 1000)
            details += (("status", self.status), ("ms", waited))
        said = reason or spoken.reason
        client.note(Event(_REQUEST, spoken.verdict, said, spoken.rule, client.host, details))

    def _note(self, reason: str, verdict: Verdict) -> None:
        if self._client is not None:
            details = (("method", self._head.word), ("path", self._head.path))
            rule = self._decision.rule
            self._client.note(Event(_REQUEST, verdict, reason, rule, self._client.host, details))


def _pool(service: str, place: Transfer) -> str:
    """Of a storage host; no service's name has a colon."""
    return f"{service}:{place.host}:{place.port}"
