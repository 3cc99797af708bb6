"""Servers of agents' settings: names and hosts are kept, and no value that may be a token (I1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.inject.configured_servers import (
    MAX_NAME,
    MAX_SERVERS,
    MAX_VARIABLES,
    ConfiguredServer,
    read_servers,
)
from keyhole.model.https_url import HttpsUrl

URL = "https://mcp.tracker.example/mcp"
TOKEN = "hunter2-the-token-of-a-person"


def only(table: dict[str, Any]) -> ConfiguredServer:
    (found,) = read_servers({"tracker": table})
    assert TOKEN not in repr(found)
    return found


@pytest.mark.parametrize("key", ["url", "httpUrl", "uri", "serverUrl"])
def test_a_remote_server_is_known_by_its_url(key: str) -> None:
    assert only({"type": "http", key: URL}) == ConfiguredServer("tracker", HttpsUrl.parse(URL))


@pytest.mark.parametrize(
    "more",
    [
        {"headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"http_headers": {"X-Api-Key": TOKEN}},
        {"env_http_headers": {"X-Token": "NAME"}},
        {"bearer_token_env_var": "NAME"},
    ],
)
def test_a_credential_of_the_setting_is_noticed_and_not_kept(more: dict[str, Any]) -> None:
    """The control is the server above, and a header that tells nobody."""
    assert only({"url": URL} | more).has_token
    assert not only({"url": URL, "headers": {"Accept-Language": "en"}}).has_token


@pytest.mark.parametrize(
    ("url", "kept", "has_token"),
    [
        (f"{URL}?api_key={TOKEN}", "/mcp", True),
        (f"https://mcp.tracker.example/s/{TOKEN}/mcp", "/", False),
        ("https://mcp.tracker.example/s/Zm9vYmFyMTIz/mcp", "/", False),
        ("https://mcp.tracker.example/api/v1/mcp?read_only", "/api/v1/mcp", False),
        ("https://mcp.tracker.example/mcp#fragment", "/mcp", False),
    ],
)
def test_what_may_be_a_token_in_a_url_is_not_kept(url: str, kept: str, has_token: bool) -> None:
    """Attack on a policy that is committed: some vendors put the token into the path."""
    found = only({"url": url})
    assert found.url == HttpsUrl.parse(f"https://mcp.tracker.example{kept}")
    assert found.narrowed is not url.endswith("#fragment")
    assert found.has_token is has_token


@pytest.mark.parametrize(
    "url", ["http://localhost:8000/mcp", "ws://x.example", f"https://me:{TOKEN}@x.example/", ""]
)
def test_a_url_for_which_there_is_no_service_has_the_reason(url: str) -> None:
    found = only({"url": url})
    assert found.url is None
    assert found.flaw


@pytest.mark.parametrize(
    ("table", "program", "variables"),
    [
        ({"command": "/opt/bin/npx", "args": ["-y", TOKEN]}, "npx", ()),
        ({"command": ["uvx", "fetch"], "environment": {"A_KEY": TOKEN}}, "uvx", ("A_KEY",)),
        ({"cmd": "uvx", "env_keys": ["A", "not a name"]}, "uvx", ("A",)),
        ({"command": "x", "env": {"A": TOKEN}, "env_vars": ["B"]}, "x", ("A", "B")),
    ],
)
def test_a_local_server_has_its_program_and_the_names_of_its_variables(
    table: dict[str, Any], program: str, variables: tuple[str, ...]
) -> None:
    assert only(table) == ConfiguredServer("tracker", program=program, variables=variables)


def test_a_program_that_passes_messages_on_is_a_remote_server() -> None:
    words = ["-y", "mcp-remote@latest", URL, "--header", f"Authorization: Bearer {TOKEN}"]
    found = only({"command": "npx", "args": words})
    assert (found.url, found.has_token) == (HttpsUrl.parse(URL), True)
    assert only({"command": "npx", "args": ["mcp-remote"]}).program == "npx"


@pytest.mark.parametrize(
    "table",
    [
        None,
        7,
        "text",
        {"tracker": 7},
        {"tracker": {}},
        {"tracker": {"url": 7, "command": None, "args": "x", "env": 7}},
        {"tracker": {"url": URL, "enabled": False}},
        {"tracker": {"url": URL, "disabled": True}},
        {"track\x1b[2Jer": {"url": URL}},
        [{"url": URL}],
        [7],
    ],
)
def test_what_is_no_server_is_left_out(table: object) -> None:
    assert read_servers(table) == ()


def test_a_list_of_tables_has_names_and_everything_is_bounded() -> None:
    (found,) = read_servers([{"name": "tracker", "transport": "http", "url": URL}])
    assert found.name == "tracker"
    many = read_servers({f"s{n}": {"url": URL} for n in range(MAX_SERVERS * 2)})
    assert len(many) == MAX_SERVERS
    assert len(read_servers({"x" * 500: {"url": URL}})[0].name) == MAX_NAME
    env = {f"V{n}": "" for n in range(MAX_VARIABLES * 2)} | {"V" * 500: ""}
    assert len(only({"command": "x", "env": env}).variables) == MAX_VARIABLES


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(_JSON)
def test_any_settings_are_read_without_an_error(table: object) -> None:
    assert all(isinstance(each, ConfiguredServer) for each in read_servers(table))
