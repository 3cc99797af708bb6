"""How sessions of a long-lived gateway end: by their time, by silence, by a person, by a crash."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.rigs.daemon.homes import ONE, Home
from tests.rigs.sandbox.projects import until_nobody_is_in
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.rigs.daemon.origin import Origin
    from tests.rigs.sandbox.people import Person

pytestmark = pytest.mark.outside


def test_a_session_ends_with_its_time_and_closes_when_it_idles(quarters: Home) -> None:
    """I9: refused requests keep no session from idling. Control: allowed ones do."""
    with (
        quarters.agent(quarters.project('[limits]\nttl = "4s"', ONE)) as brief,
        quarters.agent(quarters.second('[limits]\nidle = "2s"', ONE)) as idle,
    ):
        begin = time.monotonic()
        while time.monotonic() < begin + 2.5:
            assert idle.do("again", "one.example", "/v1/x")[0] == 200
        session = idle.session["id"]
        refused = 0
        while isinstance(answer := idle.do("get", "one.example", "/denied"), list):
            assert answer[0] == 403
            refused += 1
        assert refused > 2
        idle.until_said("limits.idle is over: the session is closed")
        assert idle.do("variables")
        brief.until_said("limits.ttl (4 s) is over: the command is ended")
        assert brief.process.wait(PATIENCE) == 124
        # The log is written a moment after the session was told.
        until(lambda: ("closed", {"why": "idle"}) in quarters.reasons(session))


def test_a_killed_run_takes_its_sandbox_and_its_session_along(quarters: Home) -> None:
    """I2: nobody is left inside, and the gateway serves nobody for it."""
    with quarters.agent(quarters.project(ONE)) as agent:
        session, namespace = agent.session["id"], agent.do("namespace")
        agent.process.kill()
        until(lambda: quarters.sessions() == {})
    until_nobody_is_in(namespace)
    until(lambda: quarters.reasons(session)[-1] == ("ended", {"why": "its supervisor ended"}))


def test_down_ends_every_sandbox_and_says_how_many(ordinary: Person, origin: Origin) -> None:
    home = Home(ordinary, origin)
    home.keep("secrets/one", "one-0123456789abcdefghij")
    home.up()
    with home.agent(home.project(ONE)) as agent:
        said = home("down")
        assert (said.code, said.out) == (0, "the gateway has ended, and 1 session with it\n")
        agent.until_said("the session was stopped: the command is ended")
        assert agent.process.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not home.socket.exists()
    assert list((home.state / "sessions").iterdir()) == []
    assert home("log", "verify").code == 0


def test_after_a_crash_sandboxes_are_closed_and_the_next_gateway_ends_them(
    ordinary: Person, origin: Origin
) -> None:
    """I2; a stale socket is no reason for a run not to work: it brings a gateway of its own."""
    home = Home(ordinary, origin)
    home.keep("secrets/one", "one-0123456789abcdefghij")
    gateway = home.up()
    project = home.project(ONE)
    with home.agent(project) as agent:
        assert agent.do("get", "one.example", "/v1/x")[0] == 200
        session = agent.session["id"]
        os.kill(gateway, signal.SIGKILL)
        agent.until_said("the gateway has ended: nothing inside reaches anything any more")
        assert isinstance(agent.do("get", "one.example", "/v1/x"), str)
        assert home.socket.exists()
        with home.agent(project) as alone:
            assert alone.do("get", "one.example", "/v1/x")[0] == 200
        assert (home("status").code, home.sessions()) == (1, {})
        said = home("up")
        assert said.code == 0, said
        assert f"session {session} (python3) of a gateway that died was ended" in said.err
        assert agent.process.wait(PATIENCE) == 128 + signal.SIGTERM
    try:
        assert home.sessions() == {}
        with home.agent(project) as agent:
            assert agent.do("get", "one.example", "/v1/x")[0] == 200
    finally:
        assert home("down").code == 0
