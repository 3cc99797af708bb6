"""Which MCP servers of an agent's settings come along, and that no credential does (I1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyhole.inject.carried_servers import MAX_ARGUMENT, MAX_ARGUMENTS, carry_servers

if TYPE_CHECKING:
    from keyhole.model.https_url import HttpsUrl

URL = "https://mcp.tracker.example/mcp"
TOKEN = "hunter2-of-a-person"
GIVEN = frozenset({"TRACKER_KEY"})


def granted(url: HttpsUrl) -> bool:
    return url.host.name == "mcp.tracker.example"


def rejects(name: str, text: str) -> bool:
    """Stands for what knows the shapes of credentials."""
    return "KEY" in name or "Bearer" in text


def carried(settings: object, reference: str = "${NAME}") -> dict[str, Any] | None:
    found = carry_servers({"tracker": settings}, granted, GIVEN, reference, rejects)
    assert TOKEN not in repr(found)
    assert (found.left == ("tracker",)) is not bool(found.kept)
    kept: dict[str, Any] | None = found.kept.get("tracker")
    return kept


def test_a_granted_remote_server_comes_along_without_its_headers() -> None:
    settings = {
        "type": "http",
        "url": f"{URL}#{TOKEN}",
        "headers": {"Authorization": f"Bearer {TOKEN}"},
        "bearer_token_env_var": "X",
        "timeout": 5,
        "enabled": True,
    }
    kept = {"type": "http", "url": URL, "timeout": 5, "enabled": True}
    assert carried(settings) == kept
    assert carried({"httpUrl": URL}) == {"httpUrl": URL}


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "https://mcp.other.example/mcp"},
        {"url": f"{URL}?api_key={TOKEN}"},
        {"url": f"https://mcp.tracker.example/s/{TOKEN}/mcp"},
        {"url": "http://mcp.tracker.example/mcp"},
        {"command": "npx", "args": ["mcp-remote", URL]},
    ],
)
def test_a_remote_server_that_cannot_be_used_inside_stays_on_the_host(
    settings: dict[str, Any],
) -> None:
    """It has no service, or what may be a token in its URL; the control is above."""
    assert carried(settings) is None


def test_a_local_server_reads_a_placeholder_from_the_sandbox() -> None:
    settings = {
        "command": "npx",
        "args": ["-y", "tracker-mcp"],
        "env": {"TRACKER_KEY": TOKEN, "LOG_LEVEL": "debug", "OTHER": TOKEN, "N": 7},
    }
    words = {"command": "npx", "args": ["-y", "tracker-mcp"]}
    env = {"LOG_LEVEL": "debug", "TRACKER_KEY": "${TRACKER_KEY}"}
    assert carried(settings) == words | {"env": env}
    by_list = carried(settings, "")
    assert by_list == words | {"env": {"LOG_LEVEL": "debug"}, "env_vars": ["TRACKER_KEY"]}
    other = {"command": ["npx"], "environment": {"TRACKER_KEY": TOKEN}, "type": "local"}
    assert carried(other, "{env:NAME}") == {
        "command": ["npx"],
        "type": "local",
        "environment": {"TRACKER_KEY": "{env:TRACKER_KEY}"},
    }
    assert carried({"command": "npx", "env": {"OTHER": TOKEN}}) == {"command": "npx"}
    assert carried({"command": "npx"}, "") == {"command": "npx"}


@pytest.mark.parametrize(
    "settings",
    [
        {"command": "x", "args": ["--header", f"Authorization: Bearer {TOKEN}"]},
        {"command": "x", "args": [f"https://me:{TOKEN}@db.example/"]},
        {"command": "x", "args": [f"https://db.example/?k={TOKEN}"]},
        {"command": "x", "args": ["\x1b[2J"]},
        {"command": "x", "args": [7]},
        {"command": "x", "args": ["y"] * MAX_ARGUMENTS},
        {"command": "x", "args": ["y" * (MAX_ARGUMENT + 1)]},
        {"cmd": "x", "args": 7},
    ],
)
def test_a_command_that_may_have_a_credential_in_it_stays_on_the_host(
    settings: dict[str, Any],
) -> None:
    """The control is above: ordinary arguments come along."""
    assert carried(settings) is None


@pytest.mark.parametrize("table", [None, [], 7, {"off": {"url": URL, "disabled": True}}, {"x": 7}])
def test_what_is_no_server_is_not_named_either(table: object) -> None:
    found = carry_servers(table, granted, GIVEN, "${NAME}", rejects)
    assert (found.kept, found.left) == ({}, ())
