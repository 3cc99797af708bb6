"""Judges the first bytes of a tunnelled connection, or all of them, before they are passed on (I4).

Each tunnel has one gate, chosen by its port: TLS is required, TLS is checked if the client speaks
it, or plain HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway import refusal_messages
from keyhole.gateway.hello import judge_tunnelled_hello
from keyhole.http.plain import HTTP_PORT, PlainRequestReader
from keyhole.http.server import Http1Server
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import Malformed, RequestUnfit
from keyhole.model.reasons import sentence_of
from keyhole.model.rule import BODILESS
from keyhole.wire.client_flight import ClientFlight
from keyhole.wire.stream_step import StreamStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.http.field import Field
    from keyhole.http.request import RequestHead
    from keyhole.model.host import Host

HTTPS_PORT = 443

JudgeRequest = Callable[["RequestHead"], Decision]
"""Decides on a plain request."""

WatchHead = Callable[[bytes], Decision | None]
"""Sees the head of a plain request; a decision refuses it."""

_ALLOWED = Decision(Verdict.ALLOW, Reason.RULE)

PORTION = 16 * 1024
"""Bytes fed to the machine at once: the bytes after each tiny request are copied (I12)."""

_WHY: dict[str, str] = {
    Reason.BODY_NOT_GRANTED: "the request has a body, which HTTP does not define for its method",
}


class Gate(Protocol):
    """Judges the client's bytes."""

    @property
    def waits(self) -> bool:
        """Whether nothing may be dialled before the client has spoken."""

    def feed(self, data: bytes) -> StreamStep:
        """Judge the next bytes."""

    def last_bytes(self, reason: str, rule: str) -> bytes:
        """The last bytes for a refused client; empty for a reset."""

    def close(self) -> None:
        """Stop judging."""


def gate_for(
    host: Host, port: int, judge: JudgeRequest | None = None, watch: WatchHead | None = None
) -> Gate:
    """The gate of a port; plain requests to a service's host are judged too. `watch` sees the head
    of each plain request, and says whether it may go on."""
    if port == HTTP_PORT:
        return HttpGate(host, judge, watch)
    return TlsGate(host, required=port == HTTPS_PORT)


class TlsGate:
    """Checks that a hello names the connection's host.

    On 443 there must be a hello. On a port that the policy names for another protocol, the client
    may speak TLS at any time, and its hello is judged then.
    """

    __slots__ = ("_flight", "_required", "_spoke_tls")

    def __init__(self, host: Host, *, required: bool) -> None:
        self._required = required
        self._spoke_tls = False
        self._flight = ClientFlight(
            lambda hello: judge_tunnelled_hello(hello, host), required=required
        )

    @property
    def waits(self) -> bool:
        """True on 443, and wherever part of a hello has come."""
        return self._required or self._flight.begun

    def feed(self, data: bytes) -> StreamStep:
        """Judge the next bytes."""
        step = self._flight.feed(data)
        self._spoke_tls = self._flight.is_tls and step.refusal != Reason.NOT_TLS
        return step

    def last_bytes(self, reason: str, rule: str) -> bytes:
        """An alert for a client that speaks TLS."""
        return refusal_messages.alert(reason) if self._spoke_tls else b""

    def close(self) -> None:
        """Nothing to release."""


class OpenGate:
    """Lets everything pass: the grant is of a port, whatever is spoken there."""

    __slots__ = ()

    waits = False

    def feed(self, data: bytes) -> StreamStep:
        """Judge nothing."""
        return StreamStep(data, free=True)

    def last_bytes(self, reason: str, rule: str) -> bytes:
        """A reset."""
        return b""

    def close(self) -> None:
        """Nothing to release."""


class HttpGate:
    """Checks that every plain request is for the connection's host, and allowed.

    The state machine of inspected connections reads the requests. Their heads are passed on
    unchanged, and the responses are not read.
    """

    __slots__ = ("_chunked", "_judge", "_machine", "_passed", "_watch", "_why")

    waits = True

    def __init__(
        self, host: Host, judge: JudgeRequest | None = None, watch: WatchHead | None = None
    ) -> None:
        """Without a `judge`, all requests to the host are allowed."""
        self._judge = judge
        self._watch = watch
        self._machine = Http1Server(PlainRequestReader(host.name), self)
        self._passed: list[bytes] = []
        self._chunked = False
        self._why = ""

    def feed(self, data: bytes) -> StreamStep:
        """Judge the next bytes."""
        machine = self._machine
        try:
            for at in range(0, len(data), PORTION):
                machine.receive(memoryview(data)[at : at + PORTION])
                while machine.behind:
                    machine.resume()
        except RequestUnfit as error:
            return self._refuse(error.reason, error.message)
        except Malformed as error:
            return self._refuse(Reason.HTTP_MALFORMED, error.why)
        passed, self._passed = self._passed, []
        return StreamStep(b"".join(passed))

    def last_bytes(self, reason: str, rule: str) -> bytes:
        """The response that every refused request gets."""
        return self._machine.reject(refusal_messages.http_reply(reason, rule, self._why))

    def close(self) -> None:
        """Release the machine, which refers to this gate."""
        self._machine.close()

    def _refuse(self, reason: str, why: str) -> StreamStep:
        self._why = why
        self._passed = []
        return StreamStep(refusal=reason)

    # ── the machine's calls ───────────────────────────────────────────────────────────────────────

    def request_begun(self, stream: int, head: RequestHead) -> HttpGate:
        """Judge a request before a byte of it goes on."""
        watched = self._watch(head.raw) if self._watch is not None else None
        if watched is not None:
            raise RequestUnfit(watched.reason, sentence_of(watched.reason))
        if self._judge is not None:
            decision = self._judge(head)
        else:
            # Attack: an origin that does not read the body of a GET takes it for a request, of
            # which neither Host nor anything else was judged (I4).
            bodied = head.length != 0 and head.method in BODILESS
            decision = Decision(reason=Reason.BODY_NOT_GRANTED) if bodied else _ALLOWED
        if not decision.allowed:
            why = _WHY.get(decision.reason, "policy does not allow it")
            raise RequestUnfit(decision.reason, why)
        self._passed.append(head.raw + b"\r\n\r\n")
        self._chunked = head.length < 0
        if head.length == 0:
            self._machine.skip_response(stream)
        return self

    def request_data(self, data: bytes | memoryview) -> None:
        """Pass bytes of a body on."""
        piece = bytes(data)
        self._passed.append(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)

    def request_ended(self, trailers: Sequence[Field]) -> None:
        """The next request may follow. Trailers are refused, because they are not judged."""
        if trailers:
            raise Malformed("a body in the clear has no trailers")
        if self._chunked:
            self._passed.append(b"0\r\n\r\n")
        self._machine.skip_response(self._machine.stream)
