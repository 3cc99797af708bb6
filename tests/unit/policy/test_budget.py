"""What a service may use of a session: told to wait, or refused for good (I9)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import Reason
from keyhole.model.rule import AccessRule
from keyhole.policy.budget import (
    Budget,
    BudgetUse,
    GatewayLimits,
    Meter,
    PeriodSpending,
    ServiceLimits,
    SoftLine,
)
from keyhole.policy.disclose import disclose
from keyhole.policy.effective_values import effective_values
from keyhole.policy.fault import PolicyFaults
from keyhole.policy.load import PolicyText, load_desktop_wish, load_gateway_limits
from keyhole.policy.reference import user_table
from keyhole.policy.schema import GATEWAY_KEYS
from tests.rigs.policies import faults, loaded, messages


def meter(
    budget: Budget | None = None,
    *,
    requests_per_second: int | None = None,
    concurrent_requests: int | None = None,
) -> Meter:
    limits = ServiceLimits(requests_per_second, concurrent_requests, (), budget or Budget())
    return Meter("own", limits, 0.0)


def refusal(made: Meter, now: float = 0.0, size: int = 0) -> tuple[str, str, bool] | None:
    """Reason, rule, and whether asking again may help."""
    refused = made.admit(now, size)
    return refused and (refused[0].reason, refused[0].rule, refused[1] > 0)


# ── places and rates ──────────────────────────────────────────────────────────────────────────────


def test_a_rate_is_there_again_later() -> None:
    made = meter(requests_per_second=2)
    assert [refusal(made) for _ in range(2)] == [None, None]
    assert refusal(made) == ("over-limit", "services.own.requests_per_second", True)
    assert made.requests == 2
    assert refusal(made, 0.5) is None


def test_a_place_is_there_again_when_a_request_is_over() -> None:
    made = meter(concurrent_requests=1)
    assert refusal(made) is None
    assert refusal(made) == ("over-limit", "services.own.concurrent_requests", True)
    made.leave()
    assert refusal(made) is None


def test_a_request_that_was_under_way_before_has_a_place_too() -> None:
    made = meter(concurrent_requests=1)
    made.join()
    assert made.admit(0.0, 0) is not None
    made.leave()
    assert made.admit(0.0, 0) is None


def test_a_request_in_the_clear_is_counted_and_keeps_no_place() -> None:
    made = meter(Budget(requests=2), concurrent_requests=1)
    assert made.pass_by(0.0) is None
    assert made.pass_by(0.0) is None
    refused = made.pass_by(0.0)
    assert refused is not None
    assert refused.reason is Reason.OVER_BUDGET


# ── budgets ───────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_of_requests_ends_for_good() -> None:
    made = meter(Budget(requests=2))
    assert [refusal(made) for _ in range(2)] == [None, None]
    for now in (0.0, 1e9):
        assert refusal(made, now) == ("over-budget", "services.own.budget.requests", False)
    assert made.uses() == (BudgetUse("services.own.budget.requests", 2, 2),)


def test_bytes_over_a_budget_are_refused_before_they_go_and_while_they_do() -> None:
    made = meter(Budget(upload=100, download=50))
    assert refusal(made, size=100) is None
    over = ("over-budget", "services.own.budget.upload", False)
    assert refusal(made, size=101) == over
    assert made.count_up(99) is None
    assert made.count_up(2) is not None
    assert refusal(made, size=2) == over
    assert made.count_up(1) is None
    assert refusal(made) == over
    assert made.count_down(50) is None
    over_down = made.count_down(1)
    assert over_down is not None
    assert over_down.rule == "services.own.budget.download"


def test_tokens_are_refused_once_they_are_used_up() -> None:
    made = meter(Budget(tokens=10))
    made.tokens = 9
    assert refusal(made) is None
    made.tokens = 15
    assert refusal(made) == ("over-budget", "services.own.budget.tokens", False)


def test_what_has_no_bound_is_not_in_the_way() -> None:
    made = meter()
    assert made.limits == ServiceLimits()
    for _ in range(1000):
        assert refusal(made, size=2**40) is None
    assert made.count_up(2**50) is None
    assert made.count_down(2**50) is None
    assert (made.spent(), made.uses()) == (None, ())


def test_another_policy_finds_what_was_counted() -> None:
    """I9: neither a change nor a change back fills a budget or a bucket again."""
    made = meter(Budget(requests=5), requests_per_second=4)
    for _ in range(4):
        assert refusal(made) is None
    made.change(ServiceLimits(), 0.0)
    assert made.uses() == ()
    made.change(ServiceLimits(budget=Budget(requests=4)), 0.0)
    assert refusal(made) == ("over-budget", "services.own.budget.requests", False)
    rated = meter(requests_per_second=4)
    for _ in range(4):
        assert refusal(rated) is None
    rated.change(ServiceLimits(requests_per_second=4), 0.0)
    assert refusal(rated) is not None
    rated.change(ServiceLimits(requests_per_second=5), 0.0)
    assert refusal(rated) is not None
    assert [refusal(rated, 1.0) for _ in range(5)] == [None] * 5
    assert refusal(rated, 1.0) is not None


@given(
    st.integers(1, 500),
    st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=30),
    st.integers(0, 29),
)
def test_no_order_of_use_and_change_gets_more_than_the_budget(
    limit: int, steps: list[tuple[bool, int]], change_at: int
) -> None:
    made = meter(Budget(upload=limit, download=limit))
    for index, (up, amount) in enumerate(steps):
        if index == change_at:
            made.change(ServiceLimits(budget=Budget(upload=limit, download=limit)), 0.0)
        (made.count_up if up else made.count_down)(amount)
    assert made.upload <= limit
    assert made.download <= limit


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────


def bodies(*pairs: tuple[str, int]) -> ServiceLimits:
    return ServiceLimits(bodies=tuple((AccessRule.parse(text), size) for text, size in pairs))


@pytest.mark.parametrize("turned", [False, True])
def test_the_most_exact_endpoint_says_how_large_a_body_may_be(turned: bool) -> None:
    pairs = [("* /**", 10), ("POST,PUT /v1/**", 20), ("POST /v1/files", 99), ("POST /v1/*", 5)]
    limits = bodies(*(reversed(pairs) if turned else pairs))
    assert limits.body("POST", [("v1", "files")]) == 99
    assert limits.body("POST", [("v1", "other")]) == 5
    assert limits.body("PUT", [("v1", "files")]) == 20
    assert limits.body("PATCH", [("v1",)]) == 10
    assert bodies(("POST /v1", 1)).body("POST", [("v2",)]) is None


def test_of_rules_of_which_none_is_more_exact_the_smallest_speaks() -> None:
    limits = bodies(("POST /*/files", 7), ("POST /v1/*", 5), ("POST /v1/same", 3))
    assert limits.body("POST", [("v1", "files")]) == 5
    # A path that servers read in two ways: the smaller of both.
    assert limits.body("POST", [("v1", "same"), ("v2", "files")]) == 3


# ── as a policy writes them ───────────────────────────────────────────────────────────────────────

MODEL = '[services.model]\nsecret = "store:m"\n'


def test_near_misses_in_a_budget_are_told() -> None:
    assert "did you mean 'tokens'?" in str(faults(MODEL + "budget = { token = 5 }")[0])
    assert "a table" in messages(MODEL + "budget = 5")
    assert "1 to 1000000000000" in messages(MODEL + "budget = { tokens = 0 }")
    assert "1 to 1000000000000" in messages(MODEL + "budget = { tokens = -1 }")
    assert "whole number" in messages(MODEL + "budget = { requests = true }")
    assert "a size is" in messages(MODEL + 'budget = { upload = "5" }')
    assert "not a method" in messages(MODEL + 'bodies = { "FETCH /x" = "1MiB" }')
    assert "a text is expected" in messages(MODEL + 'bodies = { "POST /x" = 5 }')


def test_a_budget_of_tokens_that_nobody_can_count_is_refused() -> None:
    """I10: it would be no budget at all."""
    own = '[services.own]\nhosts = ["own.example"]\nallow = ["POST /**"]\nbudget = {{ {} = 5 }}\n'
    found = faults(own.format("tokens"))
    assert "how its answers say their tokens" in found[0].message
    assert found[0].span.line == 5
    assert loaded(own.format("requests")).policy.services[0].limits is not None
    hosted = '[services.own]\nuse = "model"\nhosts = ["own.example"]\nbudget = { tokens = 5 }\n'
    assert loaded(hosted).policy.services[0].limits is not None


def test_what_is_in_force_is_shown_in_words() -> None:
    text = MODEL + 'bodies = { "POST /v1/messages" = "1MiB" }\nbudget = { tokens = 7 }'
    found = loaded(text)
    shown = {value.key: value.text for value in effective_values(found, found.policy)}
    assert shown["services.model.bodies"] == "[POST /v1/messages: 1MiB]"
    assert shown["services.model.budget.tokens"] == "7"
    assert shown["limits.concurrent_requests"] == "256"


# ── money ─────────────────────────────────────────────────────────────────────────────────────────

PRICED = 'prices = { "*" = { input = "3 USD", output = "15 USD" } }\n'


def test_money_of_a_session_is_refused_once_it_is_spent() -> None:
    made = meter(budget=Budget(session=10))
    made.session = 9
    assert refusal(made) is None
    made.session = 12  # the response that crossed the line was passed on
    assert refusal(made) == ("over-budget", "services.own.budget.session", False)
    assert made.uses() == (BudgetUse("services.own.budget.session", 12, 10),)


def of_period(period: str, spent: int, counted: int = 0) -> PeriodSpending:
    return PeriodSpending(
        day=spent if period == "day" else 0, month=spent if period == "month" else 0,
        counted=counted,
    )  # fmt: skip


@pytest.mark.parametrize("period", ["day", "month"])
def test_what_other_sessions_spent_counts_and_nothing_counts_twice(period: str) -> None:
    made = meter(budget=Budget(**{period: 100}))
    made.know_periods(of_period(period, 60))
    made.session = 30
    assert made.uses()[0].used == 90
    # The account has 20 of this session's 30 by now, and 15 more of others.
    made.know_periods(of_period(period, 95, 20))
    assert made.uses()[0].used == 105
    assert refusal(made) == ("over-budget", f"services.own.budget.{period}", False)
    made.know_periods(PeriodSpending(counted=30))  # the next day
    assert (made.uses()[0].used, refusal(made)) == (0, None)


def test_an_account_that_nobody_can_read_is_no_empty_one() -> None:
    """Attack: fill the disk that it is on."""
    made = meter(budget=Budget(day=100))
    unknown = ("spending-unknown", "services.own.budget.day", False)
    assert refusal(made) == unknown
    made.know_periods(PeriodSpending(known=False))
    assert refusal(made) == unknown
    made.know_periods(PeriodSpending())
    assert refusal(made) is None
    assert refusal(meter(budget=Budget(month=1))) is not None
    assert refusal(meter(budget=Budget(session=1))) is None


def test_a_person_is_asked_from_the_share_on_that_the_budget_names() -> None:
    made = meter(budget=Budget(session=10, day=100, ask=80))
    made.know_periods(PeriodSpending(day=70, today="2026-11-18"))
    made.session = 7
    assert made.soft_line() is None
    made.session = 8
    assert made.soft_line() == SoftLine("session", "services.own.budget.session", 8, 10, "")
    made.change(ServiceLimits(budget=Budget(day=100, ask=75)), 0.0)
    line = SoftLine("day", "services.own.budget.day", 75, 100, "2026-11-18")
    assert made.soft_line() == line
    made.change(ServiceLimits(budget=Budget(session=1)), 0.0)
    assert made.soft_line() is None


def test_money_that_nobody_can_count_is_refused() -> None:
    """I10: it would be no budget at all."""
    own = '[services.own]\nhosts = ["own.example"]\nallow = ["POST /**"]\n'
    assert "how its answers" in messages(own + PRICED + 'budget = { day = "5 USD" }\n')
    assert "no price of its models" in messages(MODEL + 'budget = { month = "5 USD" }\n')
    assert "a share of session" in messages(MODEL + 'budget = { tokens = 5, ask = "50%" }\n')
    found = loaded(MODEL + PRICED + 'budget = { session = "5 USD", ask = "50%" }\n')
    limits = found.policy.services[0].limits
    assert limits is not None
    assert (limits.budget.session, limits.budget.ask) == (5_000_000_000, 50)
    assert [each.model for each in found.policy.services[0].prices.models] == ["*"]


def test_near_misses_in_money_are_told() -> None:
    assert "a number and USD" in messages(MODEL + PRICED + 'budget = { day = "5 EUR" }')
    assert "a text is expected" in messages(MODEL + PRICED + "budget = { day = 5 }")
    assert "1% to 99%" in messages(MODEL + PRICED + 'budget = { day = "5 USD", ask = "100%" }')
    assert "a table is expected" in messages(MODEL + 'prices = { m = "3 USD" }')
    assert "a price has input" in messages(MODEL + 'prices = { m = { input = "3 USD" } }')


def test_the_users_own_prices_come_between_the_policys_and_the_catalogues() -> None:
    user = '[services.model.prices]\n"*" = { input = "1 USD", output = "1 USD" }\n'
    user += 'm = { input = "2 USD", output = "2 USD" }\n'
    found = loaded(MODEL + 'prices = { m = { input = "9 USD", output = "9 USD" } }', user=user)
    prices = found.policy.services[0].prices
    price = prices.find("m")
    assert price is not None
    assert price.price.input == 9_000_000_000
    assert prices.find("other") is not None


def test_money_is_shown_in_words() -> None:
    text = MODEL + PRICED + 'budget = { day = "20 USD", ask = "75%" }'
    found = loaded(text)
    shown = {value.key: value.text for value in effective_values(found, found.policy)}
    assert shown["services.model.budget.day"] == "20 USD"
    assert shown["services.model.budget.ask"] == "75%"
    assert shown["services.model.prices"] == "[*]"
    told = json.loads(disclose(found.policy))["services"][0]["limits"]["budget"]
    assert (told["day"], told["month"]) == ("20 USD", None)
    assert "ask" not in told, "a sandbox need not know where the person is asked"


# ── over all sandboxes ────────────────────────────────────────────────────────────────────────────


def gateway(text: str) -> GatewayLimits:
    return load_gateway_limits(PolicyText("config.toml", text.encode()))


def test_the_gateways_limits_stand_in_the_users_own_file_alone() -> None:
    assert load_gateway_limits(None) == gateway("version = 1") == GatewayLimits()
    written = gateway("version = 1\n[gateway]\nsessions = 3\ndns_per_second = 9\n")
    assert written == GatewayLimits(sessions=3, dns_per_second=9)
    found = faults("[gateway]\nsessions = 3\n")
    assert "your own config.toml" in str(found[0])
    with pytest.raises(PolicyFaults) as raised:
        gateway("version = 1\n[gateway]\nsession = 3\n")
    assert "did you mean 'sessions'?" in str(raised.value.faults[0])


def test_only_the_person_speaks_for_the_desktop() -> None:
    assert load_desktop_wish(None)
    text = b"version = 1\n[desktop]\nnotifications = false\n"
    assert not load_desktop_wish(PolicyText("config.toml", text))
    found = faults("[desktop]\nnotifications = false\n")
    assert "your own config.toml" in str(found[0])


def test_the_defaults_that_are_shown_are_those_that_hold() -> None:
    made = GatewayLimits()
    assert {key.path[1]: key.default for key in GATEWAY_KEYS} == {
        name: getattr(made, name) for name in GatewayLimits.__struct_fields__
    }
    assert all(f"| `{key.dotted}` | {key.shown} |" in user_table() for key in GATEWAY_KEYS)
