"""A decision is a value whose every zero denies, and it is no bool (I3)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest

from keyhole.model.decision import (
    NO_RULE,
    AddressDecision,
    Decision,
    DnsAnswer,
    DnsDecision,
    EgressDecision,
    Reason,
    RequestDecision,
    Route,
    Verdict,
)

if TYPE_CHECKING:
    import enum

KINDS = [Decision, EgressDecision, DnsDecision, AddressDecision, RequestDecision]


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_made_of_nothing_denies(kind: type[Decision]) -> None:
    """I3; the control is the same decision with a verdict."""
    assert not kind().allowed
    assert kind().verdict is Verdict.DENY
    assert kind().reason is Reason.NO_RULE
    assert kind().rule == NO_RULE
    assert kind(Verdict.ALLOW, Reason.RULE, "egress.allow[0]").allowed


def test_a_denial_made_of_nothing_leads_nowhere() -> None:
    """I3: no route, no address, no answer, nobody's credential."""
    assert EgressDecision().route is Route.NONE
    assert DnsDecision().answer is DnsAnswer.NXDOMAIN
    assert AddressDecision().address is None
    assert AddressDecision().port == 0
    assert RequestDecision().service is None


@pytest.mark.parametrize(
    ("values", "first"),
    [(Verdict, Verdict.DENY), (Route, Route.NONE), (DnsAnswer, DnsAnswer.NXDOMAIN)],
)
def test_the_first_and_the_zero_of_each_enum_deny(
    values: type[enum.Enum], first: enum.Enum
) -> None:
    assert next(iter(values)) is first
    assert values(0) is first


def test_the_first_reason_is_that_no_rule_spoke() -> None:
    assert next(iter(Reason)) is Reason.NO_RULE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_decision_cannot_be_used_as_a_bool(kind: type[Decision], verdict: Verdict) -> None:
    """A caller that writes `if decide(…):` is stopped at once, whichever way it was decided."""
    decision = kind(verdict)
    assert decision.allowed is (verdict is Verdict.ALLOW)
    with pytest.raises(TypeError, match="allowed"):
        bool(decision)
    with pytest.raises(TypeError, match="allowed"):
        assert not decision


@pytest.mark.parametrize("verdict", [1, True, "ALLOW", "allow", None, object(), Reason.RULE])
def test_only_the_verdict_itself_allows(verdict: object) -> None:
    assert not Decision(verdict).allowed  # type: ignore[arg-type]
    assert Decision(Verdict.ALLOW).allowed


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_does_not_change(kind: type[Decision]) -> None:
    decision = kind()
    with pytest.raises(AttributeError):
        decision.verdict = Verdict.ALLOW  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        decision.note = "x"  # type: ignore[attr-defined]
    assert not decision.allowed


def test_the_address_that_was_judged_travels_in_the_decision() -> None:
    address = ipaddress.ip_address("192.0.2.7")
    decision = AddressDecision(Verdict.ALLOW, Reason.PUBLIC_ADDRESS, "default", address, 443)
    assert (decision.address, decision.port) == (address, 443)


def test_reasons_are_stable_words() -> None:
    """Filters of users and the audit log rely on them: lower case, hyphens, each once."""
    words = [reason.value for reason in Reason]
    assert len(set(words)) == len(words)
    assert all(word == word.lower() and word.replace("-", "").isalnum() for word in words)
    assert f"{Reason.NO_RULE}" == "no-rule"
