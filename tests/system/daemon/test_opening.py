"""Which runs a gateway takes: those whose policy the person accepted, as they accepted it (I11)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.services import random_text
from tests.rigs.daemon.homes import ONE
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.rigs.daemon.homes import Home
    from tests.rigs.daemon.origin import Origin

pytestmark = pytest.mark.outside

ASK = """
import json, sys
from pathlib import Path
from keyhole.control.client import ControlClient, ControlFailed
from keyhole.control.values import SessionRequest
policy, directory, trusted = sys.argv[1:]
try:
    granted = "sha256:" + "0" * 64
    opening = SessionRequest(policy=policy, trusted=trusted, label="x", granted=granted)
    print(ControlClient(Path(directory)).open_session(opening))
except ControlFailed as error:
    print(error)
"""


def ask(home: Home, policy: object, trusted: str) -> str:
    """What the gateway says to a process that asks for a session past `keyhole run`."""
    python = str(home.person.program.with_name("python"))
    words = [python, "-I", "-c", ASK, str(policy), str(home.socket.parent), trusted]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, check=True, **home.person.become()
    )
    return str(done.stdout)


def test_only_what_was_accepted_is_provided_for(quarters: Home) -> None:
    """I11: who asks past `keyhole run`, too. Control: the same policy by a run."""
    project = quarters.project(ONE)
    done = project.run("true")
    assert done.code == 0, done
    policy = project.directory / "keyhole.toml"
    none = "sha256:" + "0" * 64
    assert "the policy was changed after it was read" in ask(quarters, policy, none)
    quarters.rewrite(project, ONE, "# another")
    assert "it is not accepted" in ask(quarters, policy, none)
    assert "no policy at" in ask(quarters, quarters.directory / "nothing", none)
    done = project("run", "--", "true")
    assert (done.code, "the policy is not accepted" in done.err) == (125, True), done
    assert quarters.sessions() == {}


def test_a_shell_with_other_package_managers_than_the_gateways_is_told_so(quarters: Home) -> None:
    """What a preset grants is read from the surroundings of who asks; I11: both read the same."""
    project = quarters.project('[egress]\npresets = ["python"]')
    other = {"PIP_INDEX_URL": "https://pip.example/simple"}
    done = project.run("true", env=other)
    assert done.code == 125
    assert "this shell's package managers say something else than the gateway's" in done.err
    assert project.run("true", env=other, flags=("--own-gateway",)).code == 0
    assert project.run("true").code == 0


def test_a_run_may_have_a_gateway_of_its_own_and_follows_its_policy_there(
    quarters: Home, origin: Origin
) -> None:
    """Not accepted and invalid are kept, accepted holds, and a new secret arrives."""
    project = quarters.project(ONE)
    wider = ONE.replace("GET /v1/**", "GET /v2/**")
    with quarters.agent(project, "--own-gateway") as agent:
        assert quarters.sessions()[agent.process.pid]["own_gateway"] is True
        assert agent.do("again", "one.example", "/v1/x")[0] == 200
        quarters.rewrite(project, "[services")
        agent.until_said("the policy is not valid, the old one holds:")
        quarters.rewrite(project, wider)
        agent.until_said("the policy has changed, the old one holds: it is not accepted")
        assert agent.do("again", "one.example", "/v1/x")[0] == 200
        quarters.accept(project)
        agent.until_said("the policy has changed and holds from now on")
        assert agent.do("again", "one.example", "/v1/x")[0] == 403
        key = random_text("one-")
        quarters.keep("secrets/one", key)

        def arrived() -> bool:
            assert agent.do("again", "one.example", "/v2/alone")[0] == 200
            return origin.credentials("/v2/alone")[-1] == f"Bearer {key}"

        until(arrived)
        assert agent.finish() == 0
