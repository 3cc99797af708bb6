"""What the services of a session use, counted as requests and answers pass.

`session.py` keeps a meter for each service whose policy has bounds of its own, `inspected.py` asks
it before a request goes, `exchange.py` shows a `Tally` the answer. Where a policy sets none of
these there is no meter, and nothing is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.usage import Usage, UsageReader
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath
from keyhole.policy.budget import BudgetUse, Meter, ServiceLimits
from keyhole.policy.limit import Bucket

if TYPE_CHECKING:
    from keyhole.model.decision import Decision
    from keyhole.policy.budget import GatewayLimits
    from keyhole.policy.policy import Policy
    from keyhole.wire.httpresponse import ResponseHead

BYTES_PER_TOKEN = 4
"""Of text whose tokens nobody says: about what English takes; other text takes fewer."""

_EVENT_MARKS = {b"text/event-stream": b"data:", b"amazon.eventstream": b":event-type"}
"""What each event has, by the type of a stream."""
_ERRORS = 400


def meters_for(policy: Policy, now: float) -> dict[str, Meter]:
    """A meter for each service that has bounds of its own."""
    meters: dict[str, Meter] = {}
    change_meters(meters, policy, now)
    return meters


def change_meters(meters: dict[str, Meter], policy: Policy, now: float) -> None:
    """Have another policy's bounds hold; what was counted stays counted.

    A meter is never forgotten: a budget that is taken away and given back has not been refilled.
    """
    bounds = {each.name: each.limits for each in policy.services if each.limits is not None}
    for name, meter in meters.items():
        meter.change(bounds.pop(name, ServiceLimits()), now)
    for name, limits in bounds.items():
        meters[name] = Meter(name, limits, now)


def uses(meters: dict[str, Meter]) -> tuple[BudgetUse, ...]:
    """Use against budget, for a listing."""
    return tuple(use for meter in meters.values() for use in meter.uses())


def body_limit(meter: Meter, method: str, path: str) -> int | None:
    """Bytes that the body of an allowed request may have by its service's own words."""
    if not meter.limits.bodies:
        return None
    try:
        read = RequestPath.parse(path, opaque_slash=True)
    except Unparsable:
        return 0  # policy does not allow such a path
    other = read.split_reading
    readings = [read.folded()] if other is None else [read.folded(), other.folded()]
    return meter.limits.body(method, readings)


class Tally:
    """The tokens of one request, charged to its service's budget.

    By what the answer says. Attack: ask for a stream and leave before its last event, which alone
    says it, or ask for a stream without it. So what ends early, and a stream that says nothing, is
    charged by its size: what was sent, and one token for each event that came. An answer that came
    whole and has no place for it (a list of models, a count) takes nothing.
    """

    __slots__ = (
        "_bytes", "_events", "_json", "_mark", "_meter", "_opaque", "_reader", "_said_of",
        "_status", "_tail", "_terse", "sent",
    )  # fmt: skip

    def __init__(self, meter: Meter, forms: tuple[Usage, ...]) -> None:
        self.sent = False
        """Whether the request has gone to the origin."""
        self._meter = meter
        self._reader = UsageReader(forms)
        # Its `invoke` passes on what each maker's model answers, in as many forms.
        self._terse = Usage.BEDROCK in forms
        self._status = 0
        self._bytes = 0
        self._events = 0
        self._mark = self._tail = b""
        """Of what comes in events, each of which is a token or more: how they are told."""
        self._json = False
        self._opaque = False
        """Whether it is encoded, and not read."""
        self._said_of = 0
        """Bytes sent up by WebSocket whose tokens were said."""

    def join(self, sent: int) -> None:
        """Count from here on what is under way; `sent` has the bytes of before."""
        self.sent = True
        self._said_of = sent

    def begin(self, head: ResponseHead) -> None:
        """The answer's head."""
        self._status = head.status
        self._opaque = bool(head.encoding)
        kinds = [line.lower() for line in head.lines if line[:13].lower() == b"content-type:"]
        for kind, mark in _EVENT_MARKS.items():
            if any(kind in line for line in kinds):
                self._mark = mark
        self._json = any(b"json" in line for line in kinds)

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes of the answer."""
        text = bytes(data)
        self._bytes += len(text)
        if self._mark:
            searched = self._tail + text
            self._events += searched.count(self._mark)
            self._tail = searched[1 - len(self._mark) :]
        self._reader.feed(text)

    def message(self, payload: bytes, *, ends: bool, sent: int) -> Decision | None:
        """A part of a WebSocket's message, of which each may say its own; a decision when the
        budget is used up, since no further request comes to be refused."""
        self._reader.feed(payload)
        if not ends:
            return None
        said = self._reader.take()
        self._events += 1
        if self._reader.crowded:
            said = (said or 0) + self._estimate_message(sent)
        if said is None:
            return None
        self._charge(said)
        self._events, self._said_of = 0, sent
        return self._meter.spent()

    def end(self, sent: int, *, whole: bool) -> None:
        """No more comes. `sent` has the bytes of what was asked."""
        said = self._reader.take() or 0
        if not self.sent or self._status >= _ERRORS:
            self._charge(said)
            return
        reader = self._reader
        silent = not said and (self._mark or reader.empty or self._opaque or self._terse)
        if silent or reader.crowded or not whole:
            said = max(said, self._estimate(sent))
        self._charge(said)

    def end_messages(self, sent: int) -> None:
        """The same of a WebSocket; `sent` has the bytes of all that was sent up."""
        self._charge(self._estimate_message(sent))

    def _estimate(self, sent: int) -> int:
        asked = sent // BYTES_PER_TOKEN
        if self._opaque:
            return asked + self._bytes
        if self._mark:
            return asked + self._events
        return asked + (self._bytes // BYTES_PER_TOKEN if self._json else 0)

    def _estimate_message(self, sent: int) -> int:
        return (sent - self._said_of) // BYTES_PER_TOKEN + self._events

    def _charge(self, tokens: int) -> None:
        self._meter.tokens += tokens


def tally_for(meter: Meter, forms: tuple[Usage, ...]) -> Tally | None:
    """Who counts the tokens of a request, where they are to be counted."""
    return Tally(meter, forms) if forms and meter.limits.budget.tokens is not None else None


class Commons:
    """What all sandboxes of a gateway share of its time; each has its own bounds below this."""

    __slots__ = ("connects", "questions", "requests")

    def __init__(self, limits: GatewayLimits, now: float) -> None:
        self.connects = _bucket("connections_per_second", limits.connections_per_second, now)
        self.questions = _bucket("dns_per_second", limits.dns_per_second, now)
        self.requests = _bucket("requests_per_second", limits.requests_per_second, now)


def _bucket(name: str, rate: int | None, now: float) -> Bucket | None:
    return None if rate is None else Bucket.full(name, rate, now, table="gateway")
