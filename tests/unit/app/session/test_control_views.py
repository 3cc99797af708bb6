"""What a person sees of a question is what a yes allows."""

from __future__ import annotations

import pytest

from keyhole.app.session.control_views import MAX_SHOWN, ask_view, waiting_line
from keyhole.gateway.asking import AskNotice
from keyhole.model.decision import Reason
from keyhole.model.rule import WORDS
from keyhole.policy.asks import MAX_RULE, Ask, AskSubject, request_subject
from keyhole.policy.schema import AskKind

LONG = "x" * 250
PATHS = ("/", "/v1/a%3Ab/", "/v1/%C3%A9", "/pkg.Svc/Do", *(f"/{'y' * n}" for n in range(970, 1003)))


def seen(subject: AskSubject) -> str:
    return ask_view("s", AskNotice(Ask("1", subject, 0.0, 1.0), Reason.HELD, 1)).rule


@pytest.mark.parametrize("word", sorted(WORDS))
def test_the_rule_of_a_request_is_shown_whole(word: str) -> None:
    """I3: "always" writes what is shown, so a rule that was cut would be another's."""
    subjects = [request_subject("api.example", 443, "api", word, path) for path in PATHS]
    found = [each for each in subjects if each is not None]
    assert found
    assert all(seen(each) == each.rule for each in found)


@pytest.mark.parametrize(
    "subject",
    [
        AskSubject(AskKind.HOSTS, f"{'a' * 60}.example", 8443),
        AskSubject(
            AskKind.PUSHES, "git.example", 443, "f", "create", "a/b", f"refs/heads/{LONG}/{LONG}"
        ),
    ],
)
def test_the_rule_of_a_host_or_push_is_shown_whole(subject: AskSubject) -> None:
    assert seen(subject) == subject.rule


def test_as_much_is_shown_as_is_asked_about() -> None:
    assert MAX_RULE <= MAX_SHOWN


def test_a_long_question_is_not_cut_in_silence_where_a_run_tells_of_it_i8() -> None:
    """Attack: the end of a path is what matters, and is not shown beside the command that approves
    it. Control: a short one has the command alone."""
    short = request_subject("api.example", 443, "api", "GET", "/v1/x")
    assert short is not None
    assert waiting_line(Ask("abc123", short, 0.0, 1.0)) == (
        "a request to api.example, GET /v1/x, waits for you: `keyhole approve abc123` or"
        " `keyhole deny abc123`, typed elsewhere; `keyhole watch` shows all"
    )
    long = request_subject("api.example", 443, "api", "GET", f"/v1/{LONG}{LONG}/delete-all")
    assert long is not None
    said = waiting_line(Ask("abc123", long, 0.0, 1.0))
    assert "characters more" in said
    assert "/delete-all, waits for you: `keyhole asks` shows it whole;" in said
    push = AskSubject(
        AskKind.PUSHES, "git.example", 443, "f", "create", "a/b", f"refs/heads/{LONG}"
    )
    assert "`keyhole asks` shows it whole" in waiting_line(Ask("abc123", push, 0.0, 1.0))
    budget = AskSubject(AskKind.BUDGETS, "m.example", 443, "m", "day", "15 USD of 20 USD")
    assert waiting_line(Ask("abc123", budget, 0.0, 1.0)).startswith("the budget services.m.budget")
