"""Counts the use of a session's services as requests and responses pass.

`session.py` keeps a meter for each service whose policy has bounds of its own, or whose responses
report tokens; `http/admission.py` asks it before a request goes, `http/response.py` shows a `Tally`
the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.prices import Charge, TokenCount
from keyhole.inject.token_usage import ReportedUsage, UsageFormat, UsageReader
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath
from keyhole.policy.budget import BudgetUse, Meter, ServiceLimits
from keyhole.policy.shared_limit import SharedBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.http.response import ResponseHead
    from keyhole.model.decision import Decision
    from keyhole.policy.budget import GatewayLimits
    from keyhole.policy.policy import Policy

BYTES_PER_TOKEN = 4
"""Bytes per token of unreported text: about right for English; other text has fewer."""

_EVENT_MARKS = {b"text/event-stream": b"data:", b"amazon.eventstream": b":event-type"}
"""The mark of each event, by the type of a stream."""
_ERRORS = 400


def meters_for(policy: Policy, now: float) -> dict[str, Meter]:
    """A meter for each service that has bounds of its own, or counts tokens."""
    meters: dict[str, Meter] = {}
    change_meters(meters, policy, now)
    return meters


def change_meters(meters: dict[str, Meter], policy: Policy, now: float) -> None:
    """Apply another policy's limits; the counters stay.

    A meter is never forgotten: a budget that is taken away and given back has not been refilled.
    """
    metered = {
        each.name: each
        for each in policy.services
        if each.limits is not None or any(host.usage for host in each.hosts)
    }
    for name, meter in meters.items():
        service = metered.pop(name, None)
        meter.change((service and service.limits) or ServiceLimits(), now)
        if service is not None:
            meter.prices = service.prices
    for name, service in metered.items():
        meters[name] = Meter(name, service.limits or ServiceLimits(), now, service.prices)


def uses(meters: dict[str, Meter]) -> tuple[BudgetUse, ...]:
    """The use of each budget, for a list."""
    return tuple(use for meter in meters.values() for use in meter.uses())


def body_limit(meter: Meter, method: str, path: str) -> int | None:
    """The limit in bytes that a service sets for the body of an allowed request."""
    if not meter.limits.bodies:
        return None
    try:
        read = RequestPath.parse(path, opaque_slash=True)
    except Unparsable:
        return 0  # policy does not allow such a path
    other = read.split_reading
    readings = [read.folded()] if other is None else [read.folded(), other.folded()]
    return meter.limits.body(method, readings)


class UsageNote(Struct, frozen=True):
    """The tokens of one response, and what they cost."""

    total: int
    tokens: TokenCount
    charge: Charge
    estimated: bool
    """Whether the response did not report them."""


class Tally:
    """The tokens of one request, and their price, charged to its service's budget.

    The response reports them. Attack: request a stream and leave before its last event, which alone
    has the report, or request a stream without a report. So a stream that ends early or reports
    nothing is charged by its size: the bytes sent, and one token for each event, or for each byte
    of gRPC's messages. A complete response without a report (a list of models, a count) costs
    nothing.
    """

    __slots__ = (
        "_bytes", "_events", "_json", "_mark", "_messages", "_meter", "_note", "_opaque", "_reader",
        "_said_of", "_status", "_tail", "_terse", "sent",
    )  # fmt: skip

    def __init__(
        self,
        meter: Meter,
        forms: tuple[UsageFormat, ...],
        note: Callable[[UsageNote], None] = lambda _: None,
    ) -> None:
        """`note` is told of what was charged."""
        self.sent = False
        """Whether the request has gone to the origin."""
        self._meter = meter
        self._note = note
        self._reader = UsageReader(forms)
        # Bedrock's `invoke` passes on the answer of each maker's model, in as many formats.
        self._terse = UsageFormat.BEDROCK in forms
        self._status = 0
        self._bytes = 0
        self._events = 0
        self._mark = self._tail = b""
        """The separator of events, in a response that is a stream of them; each has at least one
        token."""
        self._json = False
        self._opaque = False
        """Whether the response is encoded, and so is not read."""
        self._messages = False
        """Whether the response is gRPC's, which reports nothing that is read here."""
        self._said_of = 0
        """Bytes sent by WebSocket whose tokens were reported."""

    def join(self, sent: int) -> None:
        """Begin to count a request under way; `sent` has the bytes sent before."""
        self.sent = True
        self._said_of = sent

    def begin(self, head: ResponseHead) -> None:
        """The head of the response."""
        self._status = head.status
        # Attack: a message that repeats a report which the client wrote, where no JSON quotes it.
        self._messages = head.messages
        self._opaque = bool(head.encoding) or head.messages
        kinds = [line.lower() for line in head.lines if line[:13].lower() == b"content-type:"]
        for kind, mark in _EVENT_MARKS.items():
            if any(kind in line for line in kinds):
                self._mark = mark
        self._json = any(b"json" in line for line in kinds)

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes of the response."""
        text = bytes(data)
        self._bytes += len(text)
        if self._mark:
            searched = self._tail + text
            self._events += searched.count(self._mark)
            self._tail = searched[1 - len(self._mark) :]
        self._reader.feed(text)

    def message(self, payload: bytes, *, ends: bool, sent: int) -> Decision | None:
        """Count a part of a WebSocket's message, which may report its own tokens. Returns a
        decision when the budget is used up, since no further request will come that could be
        refused."""
        self._reader.feed(payload)
        if not ends:
            return None
        said = self._reader.take()
        self._events += 1
        guess = None
        if self._reader.crowded:
            guess = self._estimate_message(sent)
        if said is None and guess is None:
            return None
        self._charge(said, guess, together=True)
        self._events, self._said_of = 0, sent
        return self._meter.spent()

    def end(self, sent: int, *, whole: bool) -> None:
        """The response has ended. `sent` has the bytes of the request."""
        said = self._reader.take()
        if not self.sent or self._status >= _ERRORS:
            self._charge(said)
            return
        reader = self._reader
        reported = said is not None and said.total
        silent = not reported and (self._mark or reader.empty or self._opaque or self._terse)
        guess = None
        if silent or reader.crowded or self._messages or not whole:
            guess = self._estimate(sent)
        self._charge(said, guess)

    def end_messages(self, sent: int) -> None:
        """The same for a WebSocket; `sent` has the bytes of all client messages."""
        self._charge(None, self._estimate_message(sent))

    def _estimate(self, sent: int) -> TokenCount:
        asked = sent // BYTES_PER_TOKEN
        if self._opaque:
            return TokenCount(input=asked, output=self._bytes)
        if self._mark:
            return TokenCount(input=asked, output=self._events)
        written = self._bytes // BYTES_PER_TOKEN if self._json else 0
        return TokenCount(input=asked, output=written)

    def _estimate_message(self, sent: int) -> TokenCount:
        return TokenCount(input=(sent - self._said_of) // BYTES_PER_TOKEN, output=self._events)

    def _charge(
        self, said: ReportedUsage | None, guess: TokenCount | None = None, *, together: bool = False
    ) -> None:
        """Charge what was reported, or what is guessed if that is more; with `together`, both."""
        total, tokens = (said.total, said.tokens) if said is not None else (0, TokenCount())
        guessed = 0 if guess is None else guess.prompt + guess.output
        estimated = guessed > total or (together and guessed > 0)
        total = total + guessed if together else max(total, guessed)
        if guess is not None:
            tokens = tokens.plus(guess) if together else tokens.at_least(guess)
        meter = self._meter
        charge = meter.prices.charge(self._reader.models, tokens)
        meter.tokens += total
        meter.session += charge.cost
        if not charge.known:
            meter.unpriced += total
        if total or charge.cost:
            self._note(UsageNote(total, tokens, charge, estimated))


def tally_for(
    meter: Meter, forms: tuple[UsageFormat, ...], note: Callable[[UsageNote], None]
) -> Tally | None:
    """The tally of a request, if its tokens are counted."""
    return Tally(meter, forms, note) if forms else None


class Commons:
    """The rates that all sandboxes of a gateway share; each has its own limits beside them."""

    __slots__ = ("connects", "questions", "requests")

    def __init__(
        self, limits: GatewayLimits, now: float, lack: Callable[[], None] | None = None
    ) -> None:
        """`lack` is called when one of them refuses."""

        def bucket(name: str, rate: float | None) -> SharedBucket | None:
            if rate is None:
                return None
            made = SharedBucket.full(name, rate, now, table="gateway")
            made.lack = lack
            return made

        self.connects = bucket("connections_per_second", limits.connections_per_second)
        self.questions = bucket("dns_per_second", limits.dns_per_second)
        self.requests = bucket("requests_per_second", limits.requests_per_second)

    def named(self) -> dict[str, SharedBucket]:
        """Those that are bounded, by the names of their limits."""
        found = {
            "connections_per_second": self.connects,
            "dns_per_second": self.questions,
            "requests_per_second": self.requests,
        }
        return {name: each for name, each in found.items() if each is not None}
