"""What a judge of bodies is asked, and what it says when it says nothing (I3)."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.host import HostPattern
from keyhole.model.path import RequestPath
from keyhole.policy.body import (
    AnswerRewriter,
    BodyFacts,
    BodyJudge,
    BodyJudgement,
    refuse_unjudged,
)
from keyhole.policy.judges import make_judge
from keyhole.policy.policy import Service, ServiceHost

HOST = ServiceHost((HostPattern.parse("ok.example"),))
ALLOWED = RequestDecision(Verdict.ALLOW, Reason.RULE, "rule", "own")
FACTS = BodyFacts(HOST, "POST", RequestPath.parse("/a"), ALLOWED)


class Yes(BodyJudge):
    """Allows everything."""

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        return True

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        return BodyJudgement(facts.decision)


class Silent(AnswerRewriter):
    """Passes nothing on."""

    def feed(self, piece: bytes) -> bytes:
        return b""

    def end(self) -> bytes:
        return b""


def test_the_zero_of_a_judgement_refuses() -> None:
    """I3."""
    assert not BodyJudgement().allowed
    assert BodyJudgement(ALLOWED).allowed
    assert not BodyJudgement(ALLOWED, answer=b"").allowed


def test_messages_are_closed_unless_a_judge_opens_them() -> None:
    """I3."""
    said = Yes().judge_message(FACTS)
    assert (said.allowed, said.decision.reason) == (False, Reason.BODY_UNJUDGED)


def test_a_judge_without_slices_of_its_own_judges_at_once() -> None:
    for slices, allowed in (
        (Yes().judge_in_slices(FACTS), True),
        (Yes().judge_message_in_slices(FACTS), False),
    ):
        next(slices)
        with pytest.raises(StopIteration) as end:
            next(slices)
        assert end.value.value.allowed is allowed


def test_a_body_that_cannot_be_judged_says_why() -> None:
    said = refuse_unjudged(FACTS, "send JSON")
    assert said.why == "its body cannot be judged: its type is not application/json; send JSON"
    assert said.decision.service == "own"
    assert refuse_unjudged(FACTS).why.endswith("application/json")


def test_an_answer_is_read_unless_its_rewriter_says_otherwise() -> None:
    assert Silent().begin(200, {})


def test_a_service_without_rules_for_bodies_has_no_judge() -> None:
    assert make_judge(Service("own", "Own", (HOST,))) is None
