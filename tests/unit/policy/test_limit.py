"""Limits: what the sandbox controls is bounded (I9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.model.decision import Reason
from keyhole.policy.limit import LEAST_PROGRESS, PaceCheck, TokenBucket, decide_total


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket.full("requests_per_second", 2.0, now=10.0)
    first = bucket.take(10.0)
    second = bucket.take(10.0)
    third = bucket.take(10.0)
    assert [d.allowed for d in (first, second, third)] == [True, True, False]
    assert (third.reason, third.rule) == (Reason.OVER_LIMIT, "limits.requests_per_second")
    assert bucket.wait(10.0) == pytest.approx(0.5)
    later = bucket.take(10.5)
    assert later.allowed
    assert bucket.wait(99.0) == 0.0


def test_a_long_pause_earns_no_more_than_the_burst() -> None:
    """I9. Control: the burst itself is given."""
    bucket = TokenBucket.full("x", 1.0, now=0.0, burst=2.0)
    assert [bucket.take(3600.0).allowed for _ in range(3)] == [True, True, False]


def test_a_bucket_speaks_for_the_table_that_has_it() -> None:
    bucket = TokenBucket.full("dns_per_second", 1.0, now=0.0, table="gateway")
    assert bucket.rule == bucket.take(0.0).rule == bucket.take(0.0).rule == "gateway.dns_per_second"


def test_a_clock_that_goes_back_earns_nothing() -> None:
    bucket = TokenBucket.full("x", 1.0, now=100.0)
    assert bucket.take(100.0).allowed
    early = bucket.take(50.0)
    assert not early.allowed
    still = bucket.take(100.5)
    assert not still.allowed
    due = bucket.take(101.0)
    assert due.allowed


def test_a_negative_amount_is_refused() -> None:
    bucket = TokenBucket.full("x", 1.0, now=0.0, burst=5.0)
    decision = bucket.take(0.0, -3.0)
    assert not decision.allowed
    assert bucket.tokens == 5.0


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 4)), max_size=40),
    st.integers(1, 10),
    st.integers(1, 10),
)
def test_no_pattern_of_use_gets_more_than_burst_and_rate(
    uses: list[tuple[float, int]], rate: int, burst: int
) -> None:
    bucket = TokenBucket.full("x", rate, now=0.0, burst=burst)
    now, taken = 0.0, 0
    for pause, amount in uses:
        now += pause
        decision = bucket.take(now, amount)
        taken += amount if decision.allowed else 0
    assert taken <= burst + rate * now + 1e-6


def test_a_total_is_not_exceeded() -> None:
    assert decide_total("upload", 90, 10, 100).allowed
    over = decide_total("upload", 91, 10, 100)
    assert (over.allowed, over.reason, over.rule) == (False, Reason.OVER_LIMIT, "limits.upload")
    assert not decide_total("upload", 0, -1, 100).allowed


def test_another_rate_gives_nothing_back_and_takes_what_is_over_it() -> None:
    bucket = TokenBucket.full("x", 10.0, now=0.0)
    assert bucket.take(0.0, 10.0).allowed
    bucket.adjust(100.0, 0.5)
    assert bucket.wait(0.5, 6.0) == pytest.approx(0.01)  # five were earned at the old rate
    assert bucket.wait(0.5, 100.0) == pytest.approx(0.95)
    bucket.adjust(2.0, 60.0)
    assert (bucket.tokens, bucket.wait(60.0, 2.0)) == (2.0, 0.0)
    bucket.adjust(4.0, 59.0)  # a clock that goes back
    assert bucket.tokens == 2.0


def test_another_rate_keeps_the_length_of_a_burst() -> None:
    bucket = TokenBucket.full("x", 10.0, now=0.0, burst=100.0)
    bucket.adjust(20.0, 0.0)
    assert (bucket.burst, bucket.tokens) == (200.0, 100.0)
    bucket.adjust(1.0, 0.0)
    assert (bucket.burst, bucket.tokens) == (10.0, 10.0)


def test_who_moves_too_little_lags_and_who_moves_enough_does_not() -> None:
    pace = PaceCheck()
    assert not pace.lags("client", 0, 0.0, 60.0)
    assert not pace.lags("client", LEAST_PROGRESS - 1, 60.0, 60.0)
    assert pace.lags("client", LEAST_PROGRESS - 1, 61.0, 60.0)
    assert not pace.lags("client", LEAST_PROGRESS, 61.0, 60.0)
    assert not pace.lags("client", LEAST_PROGRESS, 121.0, 60.0)
    assert pace.lags("client", LEAST_PROGRESS, 122.0, 60.0)


def test_a_wait_for_another_or_for_nobody_begins_anew() -> None:
    pace = PaceCheck()
    assert not pace.lags("client", 0, 0.0, 60.0)
    assert not pace.lags("origin", 0, 61.0, 60.0)
    assert not pace.lags("", 0, 200.0, 60.0)
    assert not pace.lags("client", 0, 300.0, 60.0)
    assert pace.lags("client", 0, 361.0, 60.0)
