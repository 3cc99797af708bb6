"""Questions to a person: held, joined, answered, lapsed, and bounded (I3, I9)."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from keyhole.model.decision import Reason
from keyhole.model.errors import Refused
from keyhole.model.money import NANO
from keyhole.policy.asks import (
    LATE_SECONDS,
    MAX_REMEMBERED,
    MAX_RULE,
    MAX_WAITERS,
    QUIET_SECONDS,
    Answer,
    Asks,
    AskState,
    AskSubject,
    HeldAsk,
    asked_kinds,
    budget_subject,
    may_ask_about,
    request_subject,
)
from keyhole.policy.budget import SoftLine
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.policy import Approvals
from keyhole.policy.schema import AskKind
from tests.rigs.policies import loaded

WAIT = 10.0
HOST = AskSubject(AskKind.HOSTS, "late.example", 443)
GET = AskSubject(AskKind.REQUESTS, "api.example", 443, "api", "GET", "/v1/things")
PUSH = AskSubject(AskKind.PUSHES, "git.example", 443, "forge", "create", "acme/w", "refs/heads/fix")


def asks(most: int = 3) -> Asks[str]:
    numbers = itertools.count(1)
    return Asks(Approvals(wait=WAIT, most_pending=most), lambda: f"{next(numbers):06x}", 0.0)


def held(found: HeldAsk | Reason) -> HeldAsk:
    assert isinstance(found, HeldAsk), found
    return found


def test_the_next_day_is_another_question_about_a_budget() -> None:
    line = SoftLine("day", "services.own.budget.day", 15 * NANO, 20 * NANO, "2026-11-18")
    subject = budget_subject("m.example", 443, "own", line)
    assert (subject.kind, subject.path) == (AskKind.BUDGETS, "15 USD of 20 USD")
    assert subject == budget_subject("m.example", 443, "own", line)
    assert subject != budget_subject("m.example", 443, "own", replace(line, today="2026-11-19"))


def numbered(number: int) -> AskSubject:
    return AskSubject(AskKind.HOSTS, f"h{number}.example", 443)


def test_a_second_ask_for_the_same_joins_the_first() -> None:
    book = asks()
    first = held(book.hold(GET, "one", 0.0))
    second = held(book.hold(GET, "two", 1.0))
    assert (first.fresh, second.fresh) == (True, False)
    assert first.ask == second.ask == book.find(first.ask.id, 1.0)
    assert book.waiters(first.ask.id) == ("one", "two")
    (settled,) = book.answer(first.ask.id, Answer.SESSION, 2.0)
    assert (settled.reason, settled.waiters) == (Reason.APPROVED, ("one", "two"))
    assert book.views() == ()


def test_connections_to_one_host_pass_together() -> None:
    book = asks()
    ask = held(book.hold(HOST, "one", 0.0)).ask
    held(book.hold(HOST, "two", 0.0))
    (settled,) = book.answer(ask.id, Answer.ONCE, 2.0)
    assert (settled.waiters, settled.next) == (("one", "two"), None)
    assert book.settled(HOST, 3.0) is None  # once was for those that waited


@pytest.mark.parametrize("subject", [GET, PUSH])
def test_once_is_for_one_request_and_the_rest_asks_again(subject: AskSubject) -> None:
    """I3: what was approved was one, however many wait behind the question."""
    book = asks(most=1)
    first = held(book.hold(subject, "w0", 0.0)).ask
    for number in range(1, MAX_WAITERS):
        held(book.hold(subject, f"w{number}", 0.0))
    (settled,) = book.answer(first.id, Answer.ONCE, 2.0)
    assert (settled.ask, settled.reason, settled.waiters) == (first, Reason.APPROVED, ("w0",))
    again = settled.next
    assert again is not None
    assert (again.id != first.id, again.asked, again.expires) == (True, 2.0, first.expires)
    assert len(book.waiters(again.id)) == MAX_WAITERS - 1
    assert book.views() == (again,)
    assert book.settled(subject, 3.0) is None
    with pytest.raises(Refused):  # a second yes to the same line is for nothing
        book.answer(first.id, Answer.ONCE, 3.0)
    (last,) = book.expire(WAIT)
    assert (last.reason, len(last.waiters)) == (Reason.UNANSWERED, MAX_WAITERS - 1)


def test_what_nobody_answers_is_refused_and_a_late_yes_serves_the_retry() -> None:
    book = asks()
    ask = held(book.hold(GET, "one", 0.0)).ask
    assert book.next_expiry() == WAIT
    assert book.expire(WAIT - 0.1) == ()
    (lapsed,) = book.expire(WAIT)
    assert (lapsed.reason, lapsed.waiters) == (Reason.UNANSWERED, ("one",))
    assert lapsed.ask.state is AskState.LAPSED
    assert book.next_expiry() == WAIT + LATE_SECONDS
    (settled,) = book.answer(ask.id, Answer.ONCE, 60.0)
    assert (settled.waiters, settled.next) == ((), None)
    assert settled.ask.state is AskState.PENDING  # not one that can still be answered
    assert book.next_expiry() is None
    assert book.remembers
    assert book.is_allowed(GET, 61.0)
    assert not book.is_allowed(GET, 61.0 + LATE_SECONDS)
    assert book.settled(GET, 61.0) == (Reason.APPROVED, ask.id)
    assert book.settled(GET, 61.0) is None  # and once only
    assert not book.is_allowed(GET, 61.0)


def test_a_late_yes_does_not_wait_for_ever() -> None:
    book = asks()
    ask = held(book.hold(GET, "one", 0.0)).ask
    book.expire(WAIT)
    book.answer(ask.id, Answer.ONCE, 20.0)
    assert book.settled(GET, 20.0 + LATE_SECONDS) is None
    assert book.expire(20.0 + LATE_SECONDS) == ()
    assert not book._allowed


def test_a_lapsed_question_is_asked_again_by_a_retry_and_forgotten_in_the_end() -> None:
    book = asks()
    ask = held(book.hold(GET, "one", 0.0)).ask
    book.expire(WAIT)
    again = held(book.hold(GET, "two", 12.0))
    assert (again.ask.id, again.fresh, again.ask.expires) == (ask.id, True, 12.0 + WAIT)
    book.expire(12.0 + WAIT)
    assert book.views() != ()
    (gone,) = book.expire(12.0 + WAIT + LATE_SECONDS)
    assert (gone.ask.id, gone.ask.state, gone.forgotten) == (ask.id, AskState.PENDING, True)
    assert book.views() == ()
    with pytest.raises(Refused, match="no question"):
        book.answer(ask.id, Answer.ONCE, 0.0)


def test_a_question_of_yesterday_cannot_be_answered() -> None:
    """Also where no clock has run since: the host slept."""
    book = asks()
    ask = held(book.hold(GET, "one", 0.0)).ask
    book.expire(WAIT)
    end = WAIT + LATE_SECONDS
    assert book.find(ask.id, end - 1.0) is not None
    assert book.find(ask.id, end) is None
    with pytest.raises(Refused, match="no question"):
        book.answer(ask.id, Answer.SESSION, end)
    assert not book.remembers


def test_a_client_that_leaves_leaves_its_question() -> None:
    book = asks()
    ask = held(book.hold(GET, "one", 0.0)).ask
    book.leave(GET, "one")
    book.leave(GET, "one")
    book.leave(PUSH, "one")
    assert book.waiters(ask.id) == ()
    book.answer(ask.id, Answer.ONCE, 1.0)
    assert book.settled(GET, 2.0) == (Reason.APPROVED, ask.id)


@pytest.mark.parametrize("subject", [GET, PUSH])
def test_a_yes_lasts_as_long_as_it_says(subject: AskSubject) -> None:
    book = asks()
    book.answer(held(book.hold(subject, "one", 0.0)).ask.id, Answer.FOR, 0.0, 30.0)
    assert book.settled(subject, 29.0) is not None
    assert book.settled(subject, 30.0) is None
    for answer in (Answer.SESSION, Answer.ALWAYS):
        book.answer(held(book.hold(subject, "one", 40.0)).ask.id, answer, 40.0)
        assert book.settled(subject, 1e9) is not None
        book._allowed.clear()


def test_a_yes_to_a_host_that_lasts_is_a_grant_which_is_kept_elsewhere() -> None:
    book = asks()
    book.answer(held(book.hold(HOST, "one", 0.0)).ask.id, Answer.SESSION, 0.0)
    assert book.settled(HOST, 1.0) is None


def test_a_no_is_quiet_for_a_while_and_never_for_ever() -> None:
    book = asks()
    book.answer(held(book.hold(GET, "one", 0.0)).ask.id, Answer.NO, 0.0)
    assert book.settled(GET, QUIET_SECONDS - 1) == (Reason.NOT_APPROVED, "")
    assert book.settled(GET, QUIET_SECONDS) is None
    (settled,) = book.answer(held(book.hold(GET, "two", 100.0)).ask.id, Answer.NEVER, 100.0)
    assert (settled.reason, settled.waiters) == (Reason.NOT_APPROVED, ("two",))
    assert book.settled(GET, 1e9) == (Reason.NOT_APPROVED, "")


def test_a_yes_after_a_no_holds_at_once() -> None:
    book = asks()
    one = held(book.hold(GET, "one", 0.0)).ask.id
    book.answer(one, Answer.NO, 0.0)
    book.expire(QUIET_SECONDS)
    assert not book._quiet
    two = held(book.hold(GET, "two", QUIET_SECONDS)).ask.id
    book.answer(two, Answer.SESSION, QUIET_SECONDS)
    assert book.settled(GET, QUIET_SECONDS) == (Reason.APPROVED, two)


def test_no_to_all_settles_everything_and_silences_the_session() -> None:
    book = asks()
    first = held(book.hold(GET, "one", 0.0)).ask
    second = held(book.hold(HOST, "two", 0.0)).ask
    settled = book.answer(second.id, Answer.NO_TO_ALL, 1.0)
    assert [each.ask.id for each in settled] == [second.id, first.id]
    assert {each.reason for each in settled} == {Reason.NOT_APPROVED}
    assert book.silenced
    assert book.settled(PUSH, 1e9) == (Reason.NOT_APPROVED, "")


def test_what_the_sandbox_asks_is_bounded() -> None:
    """I9: questions, what waits for each, what is remembered, and their rate."""
    book = asks(most=2)
    for number in range(2):
        held(book.hold(numbered(number), "w", 0.0))
    assert book.hold(numbered(2), "w", 0.0) is Reason.TOO_MANY_ASKED
    for _ in range(MAX_WAITERS - 1):
        held(book.hold(numbered(0), "w", 0.0))
    assert book.hold(numbered(0), "w", 0.0) is Reason.TOO_MANY_ASKED
    book.expire(WAIT)
    held(book.hold(numbered(2), "w", WAIT))  # room, and the rate has earned some
    held(book.hold(numbered(3), "w", WAIT))
    assert len(book.views()) <= 4
    assert book.hold(numbered(1), "w", WAIT) is Reason.TOO_MANY_ASKED  # lapsed, and no room


def test_new_questions_come_at_a_rate_once_the_first_were_answered() -> None:
    book = asks(most=2)
    for number in range(2):
        book.answer(held(book.hold(numbered(number), "w", 0.0)).ask.id, Answer.NO, 0.0)
    assert book.hold(numbered(2), "w", 0.0) is Reason.TOO_MANY_ASKED
    held(book.hold(numbered(2), "w", 1.0))
    book.change(Approvals(wait=WAIT, most_pending=1))
    assert book.hold(numbered(3), "w", 9.0) is Reason.TOO_MANY_ASKED


def test_lapsed_questions_are_dropped_for_new_ones() -> None:
    book = asks(most=1)
    for number in range(4):
        at = number * 2 * WAIT
        gone = held(book.hold(numbered(number), "w", at)).forgotten
        # Whoever shows questions must learn of it.
        assert (gone.subject if gone else None) == (numbered(number - 1) if number else None)
        assert gone is None or gone.state is AskState.PENDING
        book.expire(at + WAIT)
        assert len(book.views()) == 1


def test_answers_are_remembered_within_a_bound() -> None:
    book = asks(most=1000)
    for number in range(MAX_REMEMBERED + 1):
        book.answer(held(book.hold(numbered(number), "w", 0.0)).ask.id, Answer.NEVER, 0.0)
    assert book.settled(numbered(0), 0.0) is None  # the oldest: it is asked again
    for number in range(MAX_REMEMBERED):
        subject = AskSubject(AskKind.REQUESTS, "api.example", 443, "api", "GET", f"/{number}")
        book.answer(held(book.hold(subject, "w", 0.0)).ask.id, Answer.SESSION, 0.0)
    ask = held(book.hold(GET, "w", 0.0)).ask
    with pytest.raises(Refused, match="change the policy"):
        book.answer(ask.id, Answer.SESSION, 0.0)
    assert book.find(ask.id, 0.0) is not None  # it still waits


def test_many_that_are_refused_for_a_minute_make_no_never_forgotten() -> None:
    """Attack: a program answers no to each, and the person is asked again."""
    book = asks(most=1000)
    book.answer(held(book.hold(HOST, "w", 0.0)).ask.id, Answer.NEVER, 0.0)
    for number in range(2 * MAX_REMEMBERED):
        book.answer(held(book.hold(numbered(number), "w", 0.0)).ask.id, Answer.NO, 0.0)
    assert book.settled(HOST, 0.0) == (Reason.NOT_APPROVED, "")
    assert book.settled(numbered(0), 0.0) is None  # control: the bound holds
    assert book.settled(numbered(2 * MAX_REMEMBERED - 1), 0.0) == (Reason.NOT_APPROVED, "")


def test_ids_are_unique_and_unknown_ones_are_nothing() -> None:
    made = iter(["a", "a", "b"])
    book: Asks[str] = Asks(Approvals(), lambda: next(made), 0.0)
    assert held(book.hold(GET, "w", 0.0)).ask.id == "a"
    assert held(book.hold(HOST, "w", 0.0)).ask.id == "b"
    assert (book.find("c", 0.0), book.waiters("c")) == (None, ())


def test_the_end_of_a_session_settles_what_waits() -> None:
    book = asks()
    held(book.hold(GET, "one", 0.0))
    (settled,) = book.close()
    assert (settled.reason, settled.waiters) == (Reason.UNANSWERED, ("one",))


@pytest.mark.parametrize(
    ("subject", "rule"),
    [
        (HOST, "late.example"),
        (AskSubject(AskKind.HOSTS, "late.example", 8443), "late.example:8443"),
        (
            budget_subject("m.example", 443, "own", SoftLine("day", "", 15, 20, "2026-11-18")),
            "services.own.budget.day",
        ),
        (GET, "GET /v1/things"),
        (PUSH, "fix"),
        (AskSubject(AskKind.PUSHES, "g.example", 443, "f", "create", "a/w", "refs/tags/v1"), "v1"),
        (replace(PUSH, ref="refs/heads/refs/tags/main"), "refs/tags/main"),
        (replace(PUSH, ref="refs/tags/refs/heads/x"), "refs/heads/x"),
    ],
)
def test_the_rule_of_a_yes_is_the_narrowest(subject: AskSubject, rule: str) -> None:
    assert subject.rule == rule


def test_the_zero_answer_refuses() -> None:
    """I3."""
    assert next(iter(Answer)) is Answer.NO
    assert [each for each in Answer if each.allows] == ["once", "for", "session", "always"]


def test_nobody_is_asked_unless_someone_is_there() -> None:
    both = {AskKind.HOSTS, AskKind.REQUESTS}
    assert asked_kinds(Approvals(), watched=False) == frozenset()
    assert asked_kinds(Approvals(), watched=True) == both
    assert asked_kinds(Approvals(command="bot"), watched=False) == both
    assert asked_kinds(Approvals(ask=()), watched=True) == frozenset()
    assert asked_kinds(Approvals(ask=(AskKind.PUSHES,)), watched=False) == {AskKind.PUSHES}


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("example.org", True),
        ("build", False),
        ("printer.local", False),
        ("1.0.0.127.in-addr.arpa", False),
        ("app.localhost", False),
    ],
)
def test_names_that_are_no_hosts_are_not_asked_about(name: str, may: bool) -> None:
    assert may_ask_about(name) is may


def subject_of(word: str, path: str) -> AskSubject | None:
    return request_subject("api.example", 443, "api", word, path)


def test_a_request_is_asked_about_by_the_path_that_a_rule_would_name() -> None:
    found = subject_of("POST", "/v1/a%3Ab/")
    assert found is not None
    assert (found.path, found.rule) == ("/v1/a:b", "POST /v1/a:b")
    assert subject_of("GET", "/" + "x" * (MAX_RULE - len("GET /"))) is not None
    call = subject_of("GRPC", "/pkg.Svc/Do")
    assert call is not None
    assert call.rule == "GRPC pkg.Svc/Do"


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("GET", "/v1/*"),  # the rule would be wider than the request
        ("GET", "/v1/a%20b"),
        ("GET", "/v1/../x"),
        ("GET", "/" + "x" * (MAX_RULE - len("GET "))),  # it would be shown cut
        ("GET", "/v1/a%E2%80%AEb"),  # it would be shown escaped
        ("GET", "/v1/a%C2%80b"),
        ("GET", "/a?b"),
        ("GRPC", "/no/such/call"),
    ],
)
def test_a_request_that_no_rule_can_name_exactly_is_not_asked_about(word: str, path: str) -> None:
    """I3."""
    assert subject_of(word, path) is None


def test_the_keys_of_the_policy() -> None:
    policy = loaded(
        '[approvals]\nask = ["hosts", "pushes"]\nwait = "90s"\nmost_pending = 5\n'
        "command = \"bot --to 'the room'\""
    ).policy
    kinds = (AskKind.HOSTS, AskKind.PUSHES)
    assert policy.approvals == Approvals(kinds, 90.0, 5, "bot --to 'the room'")
    assert policy.approvals.argv == ("bot", "--to", "the room")
    assert loaded("").policy.approvals == Approvals()
    assert Approvals().argv == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('ask = ["host"]', "hosts"),
        ('ask = ["nothing"]', "one of"),
        ('wait = "11m"', "from 1s to 10m"),
        ("most_pending = 1001", "at most 1000"),
        ('command = "bot \'"', "quoting"),
    ],
)
def test_a_wrong_value_is_refused(line: str, said: str) -> None:
    with pytest.raises(PolicyFaults) as raised:
        loaded(f"[approvals]\n{line}")
    assert said in str(raised.value)


def test_answers_that_still_hold_stay_when_others_end() -> None:
    book = asks()
    book.answer(held(book.hold(GET, "one", 0.0)).ask.id, Answer.SESSION, 0.0)
    book.answer(held(book.hold(PUSH, "two", 0.0)).ask.id, Answer.NEVER, 0.0)
    assert book.expire(1e6) == ()
    assert book.settled(GET, 1e6) is not None
    assert book.settled(PUSH, 1e6) == (Reason.NOT_APPROVED, "")
