"""The gateway's health: what it looks at, and how often it asks an origin."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from keyhole.app.daemon.reachability import MAX_TARGETS, ReachabilityCheck, reachability_targets
from tests.rigs.policies import loaded

POLICY = loaded(
    """
[egress]
allow = ["*.cdn.example", "plain.example:8443", "later.example"]
[services.one]
hosts = ["*.one.example", "api.one.example", "other.one.example"]
inject = { header = "Authorization", value = "Bearer {secret}" }
secret = "store:one"
allow = ["GET /**"]
"""
).policy


class FakeClock:
    """A loop that only knows the time."""

    now = 0.0

    def time(self) -> float:
        return self.now


class FakeSession:
    """A session whose origins are reached as the test says."""

    trusted = True

    def __init__(self, lacks: dict[str, str]) -> None:
        self.provision = SimpleNamespace(policy=POLICY)
        self.lacks = lacks
        self.asked: list[str] = []

    async def try_upstream(self, host: object, port: int) -> str:
        self.asked.append(f"{host}:{port}")
        return self.lacks.get(str(host), "")


def test_the_first_name_of_each_service_and_the_first_allowed_are_tried() -> None:
    """No wildcard: nobody knows a name under it."""
    assert [str(each) for each in reachability_targets(POLICY)] == [
        "api.one.example",
        "plain.example:8443",
    ]


def test_what_is_lacking_is_named_and_who_asks_often_asks_no_origin() -> None:
    """I9. Control: when the answer is old, they are asked again."""

    async def look() -> None:
        clock = FakeClock()
        reachable = ReachabilityCheck(cast("Any", SimpleNamespace(loop=clock)))
        session = FakeSession({"plain.example": "upstream-unreachable: refused"})
        checks = await reachable.look([cast("Any", session)])
        assert [(each.name, each.on) for each in checks] == [
            ("ca", True), ("api.one.example:443", True), ("plain.example:8443", False),
        ]  # fmt: skip
        assert checks[2].note == "upstream-unreachable: refused"
        assert await reachable.look([cast("Any", session)]) == checks
        assert len(session.asked) == 2
        clock.now = 60.0
        await reachable.look([cast("Any", session)])
        assert len(session.asked) == 4
        many = [cast("Any", FakeSession({})) for _ in range(20)]
        assert len(await reachable.look(many)) == 1 + MAX_TARGETS

    asyncio.run(look())


def test_without_a_session_there_is_nothing_to_reach() -> None:
    reachable = ReachabilityCheck(cast("Any", SimpleNamespace(loop=FakeClock())))
    assert asyncio.run(reachable.look([])) == []
