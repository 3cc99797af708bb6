"""An event says what was decided, why and by which rule; it changes nothing of that (I8)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import NO_RULE, Decision, DnsDecision, Reason, Verdict
from keyhole.model.event import Event, EventKind

DENIED = Decision()
ALLOWED = DnsDecision(Verdict.ALLOW, Reason.RULE, "egress.allow[0]")


@pytest.mark.parametrize("decision", [DENIED, ALLOWED])
@pytest.mark.parametrize("kind", EventKind)
def test_the_event_of_a_decision_says_what_the_decision_says(
    kind: EventKind, decision: Decision
) -> None:
    event = Event.of(kind, decision, "a.example", port=443, name="x")
    assert (event.kind, event.host) == (kind, "a.example")
    assert (event.verdict, event.reason) == (decision.verdict, decision.reason)
    assert event.rule == decision.rule
    assert event.details == (("port", 443), ("name", "x"))


def test_an_event_without_a_rule_names_the_one_that_speaks_by_default() -> None:
    event = Event(EventKind.LIMIT, Verdict.DENY, "over-limit")
    assert (event.rule, event.host, event.details) == (NO_RULE, "", ())


def test_an_event_does_not_change() -> None:
    event = Event.of(EventKind.DNS, DENIED, "a.example")
    with pytest.raises(AttributeError):
        event.verdict = Verdict.ALLOW  # type: ignore[misc]
    assert event.verdict is Verdict.DENY
