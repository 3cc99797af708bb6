"""Limits of all workers together: divided by use, and never exceeded, whoever does not answer."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

from keyhole.app.daemon.limit_shares import LimitShares
from keyhole.app.daemon.plane_messages import LimitUse, LimitUses
from keyhole.policy.budget import GatewayLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMITS = GatewayLimits(connections=100, requests_per_second=50)


class FakeWorkers:
    """Workers that apply what they are told, unless they are stuck."""

    def __init__(self, count: int) -> None:
        self.shares = LimitShares(LIMITS, count)
        self.in_force = [self.shares.given(each) for each in range(count)]
        self.held = [0] * count
        self.used = [0] * count
        self.lacking = [False] * count
        self.stuck: set[int] = set()
        self._now = 0.0

    async def ask(self, worker: int, shares: Mapping[str, float]) -> LimitUses | None:
        if worker in self.stuck:
            return None
        self.in_force[worker] |= shares
        for name, limit in (("connections", 100), ("requests_per_second", 50)):
            assert self.total(name) <= limit + 1e-9
        return LimitUses(
            (
                LimitUse("connections", self.held[worker], self.lacking[worker]),
                LimitUse("requests_per_second", self.used[worker], self.lacking[worker]),
            )
        )

    def total(self, name: str) -> float:
        """What all of them may have now."""
        shares = zip(self.in_force, self.held, strict=True)
        if name == "connections":
            return sum(max(each[name], held) for each, held in shares)
        return sum(each[name] for each in self.in_force)

    def divide(self, *sessions: int) -> None:
        self._now += 1.0
        asyncio.run(self.shares.divide(self.ask, sessions, self._now))

    def of(self, name: str) -> list[float]:
        return [each[name] for each in self.in_force]


def test_a_share_goes_where_it_lacks_and_comes_back() -> None:
    workers = FakeWorkers(2)
    assert workers.of("requests_per_second") == [25, 25]
    workers.lacking[0] = True
    workers.divide(1, 1)
    assert workers.of("requests_per_second") == [50, 0]
    workers.lacking = [True, True]
    workers.divide(1, 1)
    assert workers.of("requests_per_second") == [25, 25]
    assert workers.of("connections") == [50, 50]


def test_connections_that_are_held_are_not_given_to_another() -> None:
    """I9: a share falls below them only when they have ended."""
    workers = FakeWorkers(2)
    workers.held[0], workers.lacking[0] = 50, True
    workers.divide(1, 1)
    workers.held[0], workers.lacking = 90, [False, True]
    workers.divide(1, 1)
    assert workers.of("connections")[1] == pytest.approx(10)
    workers.held[0] = 0
    workers.divide(1, 1)
    assert workers.of("connections")[1] == pytest.approx(100)


def test_a_worker_that_does_not_answer_keeps_its_share_and_no_more() -> None:
    """I9, I12."""
    workers = FakeWorkers(2)
    workers.stuck.add(1)
    workers.lacking[0] = True
    workers.divide(1, 1)
    assert workers.of("requests_per_second") == [25, 25]
    # Its successor begins with the same.
    assert workers.shares.given(1)["requests_per_second"] == 25
    workers.stuck.clear()
    workers.divide(1, 1)
    assert workers.of("requests_per_second") == [50, 0]


def test_no_order_of_needs_and_silences_exceeds_a_limit() -> None:
    """I9: each call is checked, in the middle of a division too."""
    chance = random.Random(20)  # noqa: S311 - the same for every run
    workers = FakeWorkers(3)
    for _ in range(300):
        workers.stuck = {each for each in range(3) if chance.random() < 0.2}
        workers.lacking = [chance.random() < 0.5 for _ in range(3)]
        workers.used = [chance.randrange(60) for _ in range(3)]
        for each in range(3):
            if each not in workers.stuck:
                workers.held[each] = chance.randrange(int(workers.of("connections")[each]) + 1)
        workers.divide(*(chance.randrange(5) for _ in range(3)))
    assert workers.total("requests_per_second") > 0
