"""Questions as they are kept and listed: no session hides another's."""

from __future__ import annotations

from msgspec.structs import replace

from keyhole.control.open_asks import OpenAsks, by_turns
from keyhole.control.values import AskStanding, AskView
from keyhole.policy.asks import LATE_SECONDS
from tests.rigs.control.rig import ASK

A, B = "a" * 12, "b" * 12


def lapsed(number: int) -> AskView:
    state = AskStanding.LAPSED
    return replace(ASK, id=f"{number:06x}", session=A, state=state, asked=ASK.asked - 999)


def pending(session: str, number: int) -> AskView:
    return replace(ASK, id=f"{number:06x}", session=session, asked=ASK.asked + number)


def test_what_waits_comes_first_and_sessions_take_turns() -> None:
    """I12: 100 questions of one sandbox come after the first of another."""
    noisy = [pending(A, number) for number in range(100)]
    late = pending(B, 500)
    found = by_turns([lapsed(900), *noisy, late])
    assert found[:3] == [noisy[0], late, noisy[1]]
    assert found[-1] == lapsed(900)


def test_the_last_by_turns_goes_when_there_are_too_many() -> None:
    """I9, I12: bounded, and what one session asked too much takes no other's place."""
    asks = OpenAsks(10, lambda: ASK.asked)
    for number in range(10):
        assert asks.put(lapsed(number))
    assert asks.put(pending(B, 1))
    for number in range(10):
        asks.put(pending(A, number))
    assert not asks.put(pending(A, 99))
    found = asks.listed()
    assert len(found) == 10
    assert pending(B, 1) in found
    assert asks.get(B, "000001") == pending(B, 1)
    asks.remove(pending(B, 1))
    assert asks.get(B, "000001") is None


def test_what_can_no_longer_be_answered_is_dropped() -> None:
    now = [float(ASK.expires)]
    asks = OpenAsks(10, lambda: now[0])
    waits = pending(B, 1)
    asks.put(lapsed(1))
    asks.put(waits)
    assert asks.listed() == [waits, lapsed(1)]
    now[0] += LATE_SECONDS
    assert asks.listed() == [waits]
    asks.close(B)
    assert asks.listed() == []


def test_two_sessions_may_have_questions_of_one_id() -> None:
    asks = OpenAsks(10, lambda: ASK.asked)
    asks.put(pending(A, 1))
    asks.put(pending(B, 1))
    asks.close(A)
    assert asks.listed() == [pending(B, 1)]
    asks.clear()
    assert asks.listed() == []
