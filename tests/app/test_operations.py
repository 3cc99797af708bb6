"""Sessions that come while a person cuts everything off, or ends the gateway."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, cast

import pytest

from keyhole.app.leftovers import Register
from keyhole.app.live import House
from keyhole.app.metrics import Metrics
from keyhole.app.operations import GatewayOperations
from keyhole.app.provision import Provision
from keyhole.audit.log import AuditLog
from keyhole.control.interface import Refused
from keyhole.control.peer import Peer
from keyhole.control.values import Opening, Paging
from tests.worlds import loaded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from keyhole.app.kept import Kept
    from keyhole.gateway.gateway import Gateway

POLICY = loaded("").policy
DIGEST = "sha256:" + "0" * 64


class SlowKept:
    """A keeper that gives a provision when the test says so."""

    alive = True

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.ended: list[str] = []

    async def open(self, *_: object) -> Provision:
        self.asked.set()
        await self.go_on.wait()
        return Provision(DIGEST, POLICY, None, {})

    def end(self, session: str) -> None:
        self.ended.append(session)


def opening() -> Opening:
    given = Provision(DIGEST, POLICY, None, {}).granted
    return Opening(policy="/p", trusted=DIGEST, label="sh", granted=given)


async def race(
    directory: Path, meanwhile: Callable[[GatewayOperations, Peer], Awaitable[object]]
) -> tuple[object, int, bool]:
    """What becomes of a session that is being opened meanwhile; how many there are; whether the
    keeper lets it go."""
    kept, loop = SlowKept(), asyncio.get_running_loop()
    peer = Peer(os.getpid(), os.geteuid(), os.getegid(), 1, os.pidfd_open(os.getpid()))
    with AuditLog(directory / "audit") as log:
        house = House(loop, cast("Gateway", None), log, lambda _: pytest.fail("none"), directory)
        register, metrics = Register(directory / "sessions"), Metrics(log)
        operations = GatewayOperations(
            house, cast("Kept", kept), register, metrics, lambda: None, 10
        )
        task = asyncio.ensure_future(operations.open_session(opening(), None, peer))
        await kept.asked.wait()
        await meanwhile(operations, peer)
        kept.go_on.set()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        count = len((await operations.list_sessions(Paging())).sessions)
        await operations.close()
    peer.close()
    return outcome, count, bool(kept.ended)


def test_a_session_that_is_being_opened_is_cut_off_with_all_others(tmp_path: Path) -> None:
    """I2: the kill switch. Control: without it, the session comes."""

    async def nothing(*_: object) -> None:
        """Nobody asks for anything."""

    assert asyncio.run(race(tmp_path / "control", nothing))[1] == 1
    outcome, count, let_go = asyncio.run(
        race(tmp_path, lambda operations, peer: operations.revoke_all(peer))
    )
    assert isinstance(outcome, Refused)
    assert "revoked" in outcome.why
    assert (count, let_go) == (0, True)


def test_no_session_comes_to_a_gateway_that_is_about_to_end(tmp_path: Path) -> None:
    """It would be told of by nobody, and its sandbox be left to the next gateway."""

    async def close(operations: GatewayOperations, peer: Peer) -> None:
        await operations.close()
        with pytest.raises(Refused, match="about to end"):
            await operations.open_session(opening(), None, peer)

    outcome, count, let_go = asyncio.run(race(tmp_path, close))
    assert isinstance(outcome, Refused)
    assert "about to end" in outcome.why
    assert (count, let_go) == (0, True)
