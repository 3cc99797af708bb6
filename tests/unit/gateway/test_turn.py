"""A session's share of the loop's time: what is over it waits, in order, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from keyhole.gateway import turn as module
from keyhole.gateway.turn import BUDGET, UNBOUNDED, Turn


class Clock:
    """One that stands still: on a busy machine, any work may take longer than a turn."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "perf_counter", made)
    return made


def test_what_is_over_the_budget_waits_for_another_turn_in_order(clock: Clock) -> None:
    async def test() -> None:
        turn, seen = Turn(asyncio.get_running_loop()), list[str]()

        def work(name: str) -> None:
            seen.append(name)
            clock.now += 0.6 * BUDGET

        turn.spend(-2 * BUDGET)
        assert turn.left <= 0
        for name in "abcd":
            turn.later(lambda name=name: work(name))  # type: ignore[misc]
        assert not seen
        turns = []
        while len(seen) < 4:
            await asyncio.sleep(0)
            turns.append("".join(seen))
        # Two in each turn: what is begun with something left is ended.
        assert turns == ["ab", "abcd"]
        await asyncio.sleep(0)
        assert turn.left == BUDGET

    asyncio.run(test())


def test_work_that_is_asked_for_later_waits_though_something_is_left() -> None:
    async def test() -> None:
        turn, seen = Turn(asyncio.get_running_loop()), list[int]()
        turn.later(lambda: seen.append(1))
        assert not seen
        await asyncio.sleep(0)
        assert seen == [1]
        assert turn.left > 0

    asyncio.run(test())


def test_a_fault_in_what_waits_does_not_keep_the_others_waiting() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        faults, seen = list[object](), list[int]()
        loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))
        turn = Turn(loop)
        turn.later(lambda: seen.append(1 // 0))
        turn.later(lambda: seen.append(2))
        await asyncio.sleep(0)
        assert seen == [2]
        assert [type(each) for each in faults] == [ZeroDivisionError]

    asyncio.run(test())


def test_what_belongs_to_no_session_has_no_bound() -> None:
    async def test() -> None:
        seen = list[int]()
        UNBOUNDED.spend(-100)
        assert UNBOUNDED.left > 100
        UNBOUNDED.later(lambda: seen.append(1))
        await asyncio.sleep(0)
        assert seen == [1]

    asyncio.run(test())
