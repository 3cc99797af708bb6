"""A decoy freezes its session, by what a person types: at a shared gateway and at a run's own."""

from __future__ import annotations

import configparser
import json
from typing import TYPE_CHECKING

import pytest

from tests.rigs.daemon.homes import ONE, TWO

if TYPE_CHECKING:
    from tests.rigs.daemon.homes import Home

pytestmark = pytest.mark.outside

FREEZE = '[limits]\non_decoy = "freeze"\n'
BOTH = (ONE, TWO.replace('"GET /v1/**"', '"GET,POST /v1/**"'))
LEFT = ("RemoteDisconnected", "ConnectionResetError", "SSLEOFError", "SSLZeroReturnError")


@pytest.mark.parametrize("flags", [(), ("--own-gateway",)], ids=["shared", "own"])
def test_a_stolen_placeholder_freezes_its_session_and_no_other(
    quarters: Home, flags: tuple[str, ...]
) -> None:
    """I12: hostile code freezes its own session alone. Control: the same request before."""
    project = quarters.project(*BOTH, FREEZE)
    with (
        quarters.agent(project, *flags) as thief,
        quarters.agent(quarters.second(*BOTH, FREEZE), *flags) as other,
    ):
        assert thief.do("again", "one.example", "/v1/x")[0] == 200
        key = thief.do("variables")["ONE_KEY"]
        assert thief.do("send", "one.example", "/v1/x", {"X-Key": key})[0] == 200
        session = thief.session["id"]
        assert thief.session["state"] == "open"
        status, body = thief.do("send", "two.example", "/v1/x", {"X-Key": key})
        assert (status, json.loads(body)["reason"]) == (403, "frozen")
        thief.until_said("this session is frozen: the placeholder of services.one was sent to two")
        assert thief.do("again", "one.example", "/v1/x") in LEFT
        assert thief.do("get", "two.example", "/v1/x") in LEFT
        assert thief.session["state"] == "frozen"
        assert other.do("get", "one.example", "/v1/x")[0] == 200
        assert other.session["state"] == "open"
        if not flags:
            assert json.loads(quarters("status", "--json").out)["frozen"] == 1
            assert "2, 1 frozen: see `keyhole ps`" in quarters("status").out
        said = quarters("resume", session[:8])
        assert (said.code, said.out) == (0, f"{session} goes on\n")
        assert thief.do("get", "two.example", "/v1/x")[0] == 200
        assert thief.session["state"] == "open"
        said = quarters("resume", session)
        assert (said.code, "the session is not frozen" in said.err) == (1, True)
        found = [reason for reason, _ in quarters.reasons(session)]
        assert [each for each in found if each in ("frozen", "resumed")] == ["frozen", "resumed"]
    said = quarters("log", "verify")
    assert said.code == 0, said


def test_the_key_of_the_canary_file_freezes_the_session_that_sends_it(quarters: Home) -> None:
    """Control: the file is there where a client of AWS looks, and the rest of it may be sent."""
    with quarters.agent(quarters.project(*BOTH, FREEZE)) as thief:
        text = thief.do("read", "~/.aws/credentials")
        read = configparser.ConfigParser()
        read.read_string(text)
        key = read["default"]["aws_secret_access_key"]
        assert thief.do("send", "two.example", "/v1/x", {}, text.splitlines()[0])[0] == 200
        thief.begin("send", "two.example", "/v1/x", {}, f"look: {key}")
        thief.until_said("the made-up key of a canary file was sent to two.example")
        assert thief.result() in LEFT
        assert thief.session["state"] == "frozen"
        said = quarters("stop", thief.session["id"])
        assert said.code == 0, said
        assert thief.process.wait(30) == 128 + 15


def test_without_the_limit_there_is_no_canary_file(quarters: Home) -> None:
    with quarters.agent(quarters.project(*BOTH)) as agent:
        assert agent.do("read", "~/.aws/credentials") == "FileNotFoundError"


def test_only_a_session_that_exists_can_be_resumed(quarters: Home) -> None:
    said = quarters("resume", "0123456789ab")
    assert said.code == 2
    assert "there is no session '0123456789ab'" in said.err
