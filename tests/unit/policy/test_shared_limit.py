"""A limit that several processes have together is never exceeded, and one cannot starve another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.policy.shared_limit import LEAST_BURST, SharedBucket, ShareWish, divide_limit


def wish(used: float, weight: int = 1, *, lacking: bool = False) -> ShareWish:
    return ShareWish(used, lacking, weight)


def shared(rate: float, share: float) -> SharedBucket:
    bucket = SharedBucket.full("requests_per_second", rate, 0.0, table="gateway")
    bucket.resize(share, 0.0)
    return bucket


def test_what_nobody_uses_is_divided_by_sessions() -> None:
    assert divide_limit(100, [wish(0), wish(0)]) == [50, 50]
    assert divide_limit(100, [wish(0, 3), wish(0, 1)]) == [75, 25]
    assert divide_limit(100, [wish(0, 0), wish(0, 0)]) == [50, 50]
    assert divide_limit(0, [wish(0), wish(3, lacking=True)]) == [0, 0]
    assert divide_limit(10, []) == []


def test_one_that_lacks_gets_what_the_others_do_not_use() -> None:
    assert divide_limit(100, [wish(50, lacking=True), wish(0)]) == [100, 0]
    assert divide_limit(100, [wish(50, lacking=True), wish(10)]) == [90, 10]
    assert divide_limit(90, [wish(50, lacking=True), wish(10, lacking=True), wish(0)]) == [
        45, 45, 0,
    ]  # fmt: skip


def test_one_that_floods_takes_nothing_that_another_uses_within_its_fair_share() -> None:
    """I12. Control: beyond it, both get what is fair."""
    assert divide_limit(100, [wish(1e6, lacking=True), wish(40)]) == [60, 40]
    assert divide_limit(100, [wish(1e6, lacking=True), wish(70)]) == [50, 50]
    assert divide_limit(100, [wish(1e6, lacking=True), wish(70, 9)]) == pytest.approx([30, 70])


_WISHES = st.lists(
    st.builds(ShareWish, st.floats(0, 1e6), st.booleans(), st.integers(0, 1000)), min_size=1
)


@given(st.integers(0, 10_000), _WISHES)
def test_shares_are_never_more_than_the_limit(limit: int, wishes: list[ShareWish]) -> None:
    """I9."""
    shares = divide_limit(limit, wishes)
    assert all(each >= 0 for each in shares)
    assert sum(shares) == pytest.approx(limit)


def test_a_share_counts_its_use_and_tells_when_it_lacks() -> None:
    told: list[int] = []
    bucket = shared(4, 2)
    bucket.lack = lambda: told.append(1)
    assert [bucket.take(0.0).allowed for _ in range(3)] == [True, True, False]
    assert bucket.take(0.0).rule == "gateway.requests_per_second"
    assert (bucket.look(), bucket.look()) == ((2, True), (0, False))
    assert (bucket.wait(0.0) > 0, bucket.wait(9.0), len(told)) == (True, 0.0, 3)
    quiet = shared(4, 1)
    assert [quiet.take(0.0).allowed for _ in range(2)] == [True, False]


def test_a_share_that_moves_earns_nothing_by_it() -> None:
    """I9: what one process has spent, another does not get again."""
    one, other = shared(10, 10), shared(10, 0)
    assert sum(one.take(0.0).allowed for _ in range(20)) == 10
    one.resize(0, 0.0)
    other.resize(10, 0.0)
    # Its own least burst is all that the other has at once.
    assert sum(other.take(0.0).allowed for _ in range(20)) == LEAST_BURST
    assert sum(other.take(1.0).allowed for _ in range(20)) == 10
    assert one.wait(0.0) > 0
    # A clock that goes back earns nothing.
    other.resize(10, 0.5)
    assert not other.take(1.0).allowed
