"""A connection to an origin over verified TLS, used for one request at a time and kept for more.

Made by `reach.py` for a judged address. Reads answers strictly and hands them to the exchange that
waits for one; what comes when nobody waits ends the connection.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway import refusal
from keyhole.gateway.session import OverLimit
from keyhole.gateway.tlsside import TlsSide
from keyhole.model.decision import AddressDecision
from keyhole.model.value import dataclass
from keyhole.wire.httpbody import ChunkedReader
from keyhole.wire.httpfield import END_OF_HEAD, Malformed, find_end
from keyhole.wire.httpresponse import Framing, ResponseHead, parse_response

if TYPE_CHECKING:
    import asyncio
    import socket

    from keyhole.inject.returned import AnswerFields
    from keyhole.model.decision import Decision
    from keyhole.model.host import Host
    from keyhole.wire.httpfield import Field, Memo

MAX_INTERIM = 16
"""Answers of class 1xx before the real one."""

MAX_LAST_READS = 64
"""Reads from a connection that was reset: no more than a kernel keeps for one."""

_SWITCHING = 101
_, _LENGTH, _CHUNKED, _UNTIL_CLOSED = Framing


class Insecure(Exception):
    """The origin's TLS failed; `reason` is a stable code, and the text is for a person."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a connection goes, and what is remembered of answers from there."""

    host: Host
    port: int
    known_answers: Memo
    fields: AnswerFields | None = None
    """Which fields of its answers go on; None: all."""


class Asker(Protocol):
    """Who waits for an answer: a client's request, or the gateway with a question of its own."""

    method: str
    trailers: list[Field]

    def interim(self, head: ResponseHead) -> None:
        """An answer before the answer."""

    def answered(self, head: ResponseHead, body: bytes | None = None) -> None:
        """The answer's head, with its body when that is here whole."""

    def body(self, data: bytes | memoryview) -> None:
        """Bytes of the answer; a view is good until this returns."""

    def relayed(self, data: bytes) -> None:
        """Bytes after a switch of protocols."""

    def flush(self) -> None:
        """All that came at once was said."""

    def complete(self, *, reusable: bool) -> None:
        """The answer is whole."""

    def relay_ended(self) -> None:
        """The other protocol has ended properly."""

    def origin_lost(self, *, stale: bool) -> None:
        """The origin is gone before its answer was whole."""

    def origin_caught_up(self) -> None:
        """The origin takes more."""

    def failed(self, reason: str, why: str, decision: Decision | None = None) -> None:
        """The answer is not HTTP."""

    def over(self, decision: Decision) -> None:
        """A limit on bytes is reached."""


class Origin(TlsSide):
    """One connection."""

    __slots__ = (
        "_fields", "_head", "_held", "_interim", "_known_answers", "_left", "_reader", "_ready",
        "_relays", "_searched", "_treat", "address", "exchange", "idle_since", "touched", "used",
    )  # fmt: skip

    def __init__(
        self,
        destination: Destination,
        sock: socket.socket,
        ready: asyncio.Future[None],
    ) -> None:
        super().__init__()
        self.sock = sock
        self.address = AddressDecision()
        """What it was dialled by."""
        self.exchange: Asker | None = None
        self.idle_since = 0.0
        self.used = False
        """Whether it has served a request before the present one."""
        self.touched = False
        """Whether a byte of the present answer has come."""
        self._known_answers = destination.known_answers
        self._fields = destination.fields
        self._treat = destination.fields.treat if destination.fields is not None else None
        self._ready: asyncio.Future[None] | None = ready
        self._head: ResponseHead | None = None
        self._reader: ChunkedReader | None = None
        self._left = 0
        self._held = b""
        self._searched = 0
        """Bytes of what is held in which the end of a head was looked for."""
        self._interim = 0
        self._relays = False

    def serve(self, exchange: Asker) -> None:
        """Wait for the answer to this exchange's request."""
        self.exchange = exchange
        self.touched = False
        self.careful = True
        self._head = None
        self._interim = 0

    def alive(self) -> bool:
        """Whether a request can be sent. Not where something has come that nobody asked for.

        It is looked at in the session's next turn, which aborts the connection; a request that went
        out before that would take it for its answer.
        """
        return super().alive() and (self.exchange is not None or not self._put_off)

    def release(self) -> None:
        """The exchange is over; whoever calls this decides what becomes of the connection."""
        self.exchange = None
        self.used = True

    def close(self) -> None:
        """Say goodbye, unless it would have to wait: what it does not take now is of no use."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    # ── TLS ───────────────────────────────────────────────────────────────────────────────────────

    def secured(self) -> None:
        """The origin is who it says it is."""
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_result(None)

    def insecure(self, error: ssl.SSLError) -> None:
        """Never a way around: the exchange is told why."""
        self._fail(error)
        self.abort()

    def _fail(self, error: ssl.SSLError | None) -> None:
        ready, self._ready = self._ready, None
        if ready is None or ready.done():
            return
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"the origin's certificate is not accepted: {error.verify_message}"
            ready.set_exception(Insecure(refusal.UPSTREAM_CERTIFICATE, why))
            return
        what = "the connection was closed" if error is None else error.reason or "an error"
        ready.set_exception(Insecure(refusal.UPSTREAM_TLS, f"TLS with the origin failed: {what}"))

    # ── answers ───────────────────────────────────────────────────────────────────────────────────

    def received(self, view: memoryview) -> None:
        """Bytes of an answer."""
        exchange = self.exchange
        if exchange is None:
            # Nobody asked: an answer that would be taken for the next request's.
            self.abort()
            return
        self.touched = True
        head = self._head
        try:
            if head is not None and head.framing is _LENGTH:
                self._body_of_length(exchange, head, view)
            else:
                data = self._held + view if self._held else bytes(view)
                self._held = b""
                self._advance(exchange, data)
        except Malformed as error:
            exchange.failed(refusal.UPSTREAM_MALFORMED, error.why)
            return
        except OverLimit as error:
            exchange.over(error.decision)
            return
        exchange.flush()

    def _advance(self, exchange: Asker, data: bytes) -> None:
        while self._head is None and not self._relays:
            end = find_end(data, self._searched)
            if end < 0:
                self._held, self._searched = data, len(data)
                return
            self._searched = 0
            method = exchange.method
            head = parse_response(data[:end], method, self._known_answers, self._treat)
            if head.collected and self._fields is not None:
                self._fields.put_back(head, method)
            data = data[end + len(END_OF_HEAD) :]
            if head.status < 200 and head.status != _SWITCHING:
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise Malformed("too many interim answers")
                exchange.interim(head)
                continue
            if head.framing is _LENGTH and head.length <= len(data):
                self._whole(exchange, head, data)
                return
            self._begin_body(exchange, head)
            if self.exchange is not exchange:
                return  # it was refused, or needs nothing further
        self._body(exchange, data)

    def _whole(self, exchange: Asker, head: ResponseHead, data: bytes) -> None:
        """Hand an answer over that is here from its head to its end."""
        self._head = head
        self._left = 0
        length = head.length
        exchange.answered(head, data[:length])
        if self.exchange is exchange:
            exchange.complete(reusable=len(data) == length and not head.close)

    def _begin_body(self, exchange: Asker, head: ResponseHead) -> None:
        """Hand the head over, before its body."""
        self._head = head
        # Attack: an answer of which a byte decodes to hundreds holds the loop up (I12).
        self.careful = bool(head.encoding)
        self._left = head.length
        self._reader = ChunkedReader(None) if head.framing is _CHUNKED else None
        if head.status == _SWITCHING:
            self._relays = True
        exchange.answered(head)

    def _body(self, exchange: Asker, data: bytes) -> None:
        if self._relays:
            if data:
                exchange.relayed(data)
            return
        head = self._head
        if head is None:
            return
        framing = head.framing
        if framing is _LENGTH:
            self._body_of_length(exchange, head, data)
        elif framing is _CHUNKED:
            reader = self._reader
            if reader is None:
                return
            payload = reader.feed(data)
            if payload:
                exchange.body(payload)
                if self.exchange is not exchange:
                    return
            if reader.done:
                trailers, fields = reader.trailers, self._fields
                exchange.trailers = fields.trailers(trailers) if fields and trailers else trailers
                exchange.complete(reusable=not reader.rest and not head.close)
        elif framing is _UNTIL_CLOSED:
            if data:
                exchange.body(data)
        else:
            exchange.complete(reusable=not data and not head.close)

    def _body_of_length(
        self, exchange: Asker, head: ResponseHead, data: bytes | memoryview
    ) -> None:
        left = self._left
        rest = len(data) > left
        if rest:
            data = data[:left]
        self._left = left - len(data)
        if data:
            exchange.body(data)
        if not self._left and self.exchange is exchange:
            exchange.complete(reusable=not rest and not head.close)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def ended(self) -> None:
        """TLS's own goodbye: the proper end of a body without a length."""
        exchange, head = self.exchange, self._head
        self.close()
        if exchange is None:
            return
        if self._relays:
            exchange.relay_ended()
        elif head is not None and head.framing is _UNTIL_CLOSED:
            exchange.complete(reusable=False)
            exchange.flush()
        else:
            self._broken(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone; but who refuses a body and closes has often said why before."""
        if exc is not None and self.exchange is not None:
            self._read_rest()
        super().connection_lost(exc)

    def _read_rest(self) -> None:
        """Read what came before a reset, which writing has met first."""
        self._take_put_off()
        sock, buffer = self.sock, self.get_buffer(0)
        for _ in range(MAX_LAST_READS):
            try:
                count = sock.recv_into(buffer) if sock is not None else 0
            except OSError:
                return
            if not count:
                return
            self._take(count)

    def lost(self, exc: Exception | None) -> None:
        """Gone: whoever waits is told."""
        self._fail(None)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._broken(exchange)

    def _broken(self, exchange: Asker) -> None:
        self.exchange = None
        exchange.origin_lost(stale=self.used and not self.touched)

    def caught_up(self) -> None:
        """The client may send on."""
        if self.exchange is not None:
            self.exchange.origin_caught_up()
