"""Sandboxes at one gateway: apart from each other, changed while they run, ended by a person."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.rigs.clients.services import random_text
from tests.rigs.daemon.homes import ONE, TWO
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.rigs.daemon.homes import Home
    from tests.rigs.daemon.origin import Origin

pytestmark = pytest.mark.outside

TUNNEL = '[egress]\nallow = ["tunnel.example"]\n'


def test_two_sandboxes_have_each_its_own_and_nothing_of_the_others(
    home: Home, origin: Origin
) -> None:
    """I1, I5: each the control of the other."""
    one, two = random_text("one-"), random_text("two-")
    home.keep("secrets/one", one)
    home.store("two", two, verb="rotate")
    with home.agent(home.project(ONE)) as first, home.agent(home.second(TWO)) as second:
        told = {agent: agent.do("variables") for agent in (first, second)}
        assert "TWO_KEY" not in told[first]
        assert "ONE_KEY" not in told[second]
        stand_in = {first: told[first]["ONE_KEY"], second: told[second]["TWO_KEY"]}
        for agent, name, key in ((first, "one", one), (second, "two", two)):
            status, body = agent.do("get", f"{name}.example", "/v1/own")
            assert status == 200
            assert body.startswith(f"{name}.example got Bearer {stand_in[agent]}")
            assert key not in body
            assert origin.seen[-1].authorization == f"Bearer {key}"
        before = len(origin.seen)
        # No name of the other's is known here, and its placeholder opens nothing.
        assert first.do("get", "two.example", "/v1/own") == "gaierror"
        assert second.do("get", "one.example", "/v1/own") == "gaierror"
        assert len(origin.seen) == before
        for agent, key in ((first, one), (second, two)):
            assert one not in json.dumps(told[agent])
            assert two not in json.dumps(told[agent])
            shown = agent.session
            assert (shown["state"], shown["label"], shown["requests"]) == ("open", "python3", 1)
            assert key not in json.dumps(shown)
        # Each has a CA of its own: what one believes is no reason for the other.
        assert first.finish() == second.finish() == 0
    assert home.sessions() == {}
    said = home("log", "verify")
    assert said.code == 0, said


def test_a_new_secret_reaches_a_session_while_its_stream_goes_on(
    home: Home, origin: Origin
) -> None:
    """I7: of a file and of the store; the old one is still removed from the same answer."""
    old = {"one": random_text("one-"), "two": random_text("two-")}
    new = {"one": random_text("one-"), "two": random_text("two-")}
    home.keep("secrets/one", old["one"])
    home.store("two", old["two"], verb="rotate")
    with home.agent(home.project(ONE, TWO)) as agent:
        stand_in = agent.do("variables")
        for name in ("one", "two"):
            path = f"/v1/stream/{name}"
            assert agent.do("stream", f"{name}.example", path) == 200
            assert origin.credentials(path)[-1] == f"Bearer {old[name]}"
            assert agent.do("again", f"{name}.example", "/v1/before")[0] == 200
        home.keep("secrets/one", new["one"])
        home.store("two", new["two"], verb="rotate")
        for name in ("one", "two"):
            path, own = f"/v1/stream/{name}", stand_in[f"{name.upper()}_KEY"]

            def arrived(name: str = name) -> bool:
                # On a connection that was open before, too.
                assert agent.do("again", f"{name}.example", f"/v1/{name}")[0] == 200
                return origin.credentials(f"/v1/{name}")[-1] == f"Bearer {new[name]}"

            until(arrived)
            for key in (old[name], new[name]):
                origin.feed(path, f"data: {key} and its like")
                line = agent.do("more", path)
                assert line.startswith(f"data: {own}")
                assert line.endswith(" and its like\n")
                assert key not in line
            origin.feed(path, None)
            assert agent.do("more", path) == ""
        changed = [
            d for reason, d in home.reasons(agent.session["id"]) if reason == "secret-changed"
        ]
        assert {each["service"] for each in changed} == {"one", "two"}


def test_a_rotation_can_end_the_sessions_that_had_the_old_one(quarters: Home) -> None:
    """Control: a session that never had it goes on."""
    with (
        quarters.agent(quarters.project(TWO)) as holder,
        quarters.agent(quarters.second(ONE)) as other,
    ):
        said = quarters.store("two", random_text("two-"), "--end-sessions", verb="rotate")
        assert "1 session that had the old one ended" in said.out
        assert holder.process.wait(5) == 128 + 15
        holder.until_said("the session was stopped: the command is ended")
        assert other.do("get", "one.example", "/v1/x")[0] == 200


def test_a_changed_policy_holds_when_it_is_valid_and_accepted(home: Home) -> None:
    """I11; what a session gains or loses is written down, and a tunnel that it loses is cut."""
    wider = ONE.replace("GET /v1/**", "GET /v2/**")
    project = home.project(ONE, TUNNEL)
    with home.agent(project) as agent:
        session = agent.session["id"]
        assert agent.do("again", "one.example", "/v1/x")[0] == 200
        assert agent.do("stream", "tunnel.example", "/v1/stream/tunnel") == 200

        home.rewrite(project, "[services")
        agent.until_said("the policy is not valid, the old one holds:")
        assert agent.do("again", "one.example", "/v1/x")[0] == 200
        home.rewrite(project, wider)
        said = home("reload")
        assert (said.code, "kept" in said.out) == (1, True), said
        agent.until_said("the policy has changed, the old one holds: it is not accepted")
        assert agent.do("again", "one.example", "/v1/x")[0] == 200

        agent.begin("more", "/v1/stream/tunnel")
        home.accept(project)
        agent.until_said("the policy has changed and holds from now on")
        assert agent.result() in ("", "ConnectionResetError", "SSLEOFError", "IncompleteRead")
        assert agent.do("again", "one.example", "/v1/x")[0] == 403
        assert agent.do("again", "one.example", "/v2/x")[0] == 200
        assert agent.do("get", "tunnel.example", "/v1/x") == "gaierror"
        said = home("reload")
        assert (said.code, "unchanged" in said.out) == (0, True), said
        events = home.reasons(session)
    refused = [details["why"] for reason, details in events if reason == "change-refused"]
    assert len(refused) == 2
    assert ["not valid" in refused[0], "not accepted" in refused[1]] == [True, True]
    gained = [details["grant"] for reason, details in events if reason == "granted"]
    lost = [details["grant"] for reason, details in events if reason == "withdrawn"]
    assert any("/v2/**" in line for line in gained)
    assert any("/v1/**" in line for line in lost)
    assert any("tunnel.example" in line for line in lost)


def test_a_revoked_session_is_cut_off_and_its_command_goes_on(home: Home) -> None:
    """I2. Control: the one beside it, until all are."""
    with home.agent(home.project(ONE, TUNNEL)) as agent, home.agent(home.second(ONE)) as other:
        session = agent.session["id"]
        assert agent.do("stream", "one.example", "/v1/stream/cut") == 200
        agent.begin("more", "/v1/stream/cut")
        said = home("revoke", session[:6])
        assert (said.code, said.out) == (0, f"{session} closed; its connections are cut\n")
        agent.until_said("the session was revoked: nothing inside reaches anything any more")
        assert agent.result() in ("", "ConnectionResetError", "SSLEOFError", "IncompleteRead")
        assert isinstance(agent.do("get", "one.example", "/v1/x"), str)
        assert isinstance(agent.do("get", "tunnel.example", "/v1/x"), str)
        assert agent.session["state"] == "revoked"
        assert other.do("get", "one.example", "/v1/x")[0] == 200
        said = home("allow", session, "granted.example")
        assert said.code == 1, said

        assert home("revoke", "--all").out.startswith("1 session closed")
        other.until_said("the session was revoked")
        assert isinstance(other.do("get", "one.example", "/v1/x"), str)
        # Closed is not ended: what the command says and how it ends is its own.
        assert agent.do("variables")["ONE_KEY"]
        assert agent.finish() == 0
        said = home("stop", other.session["id"])
        assert said.code == 0, said
        assert other.process.wait(5) == 128 + 15
    assert home("stop", session).code == 2
    assert home.sessions() == {}


def test_a_person_lets_a_session_reach_one_host_for_a_time_and_some_uses(quarters: Home) -> None:
    """I4: no host of a service, whose paths are the policy's. Control: before it was granted."""
    with (
        quarters.agent(quarters.project(ONE)) as agent,
        quarters.agent(quarters.second(ONE)) as other,
    ):
        session = agent.session["id"]
        assert agent.do("get", "granted.example", "/x") == "gaierror"
        said = quarters("allow", session, "granted.example", "--for", "10m", "--uses", "2")
        assert said.code == 0, said
        assert f"{session} may connect to granted.example 2 times, until" in said.out
        agent.until_said("granted.example is granted for 600 s and 2 uses")
        for left in (1, 0):
            assert agent.do("get", "granted.example", "/x")[0] == 200
            shown = agent.session["grants"]
            assert [each["uses"] for each in shown] == ([left])
        assert isinstance(agent.do("get", "granted.example", "/x"), str)
        assert other.do("get", "granted.example", "/x") == "gaierror"

        assert quarters("allow", session, "one.example").code == 1
        quarters("allow", session, "granted.example", "--for", "2s", "--uses", "9")
        assert agent.do("stream", "granted.example", "/v1/stream/granted") == 200
        # Cut when the time is over, without a word of the origin's.
        assert agent.do("more", "/v1/stream/granted") in ("", "ConnectionResetError", "SSLEOFError")
        assert isinstance(agent.do("get", "granted.example", "/x"), str)


def test_a_budget_is_spent_once_and_shown(quarters: Home) -> None:
    """I9: a policy that is read again gives nothing back."""
    project = quarters.project(ONE, "budget = { requests = 2 }")
    with quarters.agent(project) as agent:
        answers = [agent.do("again", "one.example", "/v1/x") for _ in range(3)]
        assert [status for status, _ in answers] == [200, 200, 403]
        refused = json.loads(answers[-1][1])
        assert (refused["reason"], refused["retry"]) == ("over-budget", False)
        spent = {"id": "services.one.budget.requests", "used": 2, "limit": 2}
        assert agent.session["budgets"] == [spent]
        quarters.rewrite(project, ONE, "budget = { requests = 3 }")
        quarters.accept(project)
        agent.until_said("the policy has changed and holds from now on")
        answers = [agent.do("again", "one.example", "/v1/x") for _ in range(2)]
        assert [status for status, _ in answers] == [200, 403]
        assert agent.session["budgets"] == [spent | {"used": 3, "limit": 3}]
