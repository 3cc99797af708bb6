"""What a connection's first bytes, or all of them, must say before they go on (I4).

One gate per connection, by port: TLS where it must be, TLS where it shows itself, plain HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from keyhole.gateway import refusal
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.host import Host
from keyhole.model.rule import BODILESS
from keyhole.wire.clientflight import ClientFlight
from keyhole.wire.httphead import HTTP_PORT, Head
from keyhole.wire.httpstream import HttpStream

if TYPE_CHECKING:
    from keyhole.wire.clienthello import Hello
    from keyhole.wire.step import Step

HTTPS_PORT = 443

JudgeRequest = Callable[[Head], str | None]
"""From a request to why it may not be made."""


class Gate(Protocol):
    """Judges what the client sends."""

    @property
    def waits(self) -> bool:
        """Whether nothing may be dialled before the client has spoken."""

    def feed(self, data: bytes) -> Step:
        """Judge the next bytes."""

    def farewell(self, reason: str, rule: str) -> bytes:
        """What the refused client is sent; nothing: a reset."""


def gate_for(host: Host, port: int, judge: JudgeRequest | None = None) -> Gate:
    """The gate that a port has; plain requests to a service's host are judged, too."""
    if port == HTTP_PORT:
        return HttpGate(host, judge)
    return TlsGate(host, required=port == HTTPS_PORT)


class TlsGate:
    """The hello's name is the connection's name.

    On 443 there must be a hello. On a port that policy names for another protocol the first bytes
    decide, whenever they come: waiting with a foreign hello until the origin is dialled gains
    nothing.
    """

    __slots__ = ("_flight", "_required", "_spoke_tls")

    def __init__(self, host: Host, *, required: bool) -> None:
        self._required = required
        self._spoke_tls = False
        self._flight = ClientFlight(lambda hello: judge_hello(hello, host), required=required)

    @property
    def waits(self) -> bool:
        """On 443, and wherever half a hello has come."""
        return self._required or self._flight.begun

    def feed(self, data: bytes) -> Step:
        """Judge the next bytes."""
        step = self._flight.feed(data)
        self._spoke_tls = step.refusal != refusal.NOT_TLS
        return step

    def farewell(self, reason: str, rule: str) -> bytes:
        """An alert for who speaks TLS."""
        return refusal.alert(reason) if self._spoke_tls else b""


def judge_hello(hello: Hello, host: Host) -> str | None:
    """Why a hello may not pass on a connection to `host`."""
    if hello.ech:
        # The name that counts is inside; the one outside is for us.
        return refusal.ECH
    if hello.sni is None:
        return refusal.SNI_MISSING
    if hello.sni == host.name:
        return None  # spelled as the canonical name, which parses to itself
    try:
        named = Host.parse(hello.sni)
    except Unparsable:
        return refusal.HELLO_MALFORMED
    return None if named == host else refusal.SNI_MISMATCH


class HttpGate:
    """Every request's Host is the connection's name."""

    __slots__ = ("_stream",)

    waits = True

    def __init__(self, host: Host, further: JudgeRequest | None = None) -> None:
        def judge(head: Head) -> str | None:
            if head.host != host:
                return refusal.HOST_MISMATCH
            if further is not None:
                return further(head)
            # Attack: an origin that does not read the body of a GET takes it for a request, of
            # which neither Host nor anything else was judged (I4).
            bodied = head.word != head.method and head.method in BODILESS
            return Reason.BODY_NOT_GRANTED if bodied else None

        self._stream = HttpStream(judge)

    def feed(self, data: bytes) -> Step:
        """Judge the next bytes."""
        return self._stream.feed(data)

    def farewell(self, reason: str, rule: str) -> bytes:
        """The answer that every refused request gets."""
        return refusal.http_reply(reason, rule, self._stream.why)
