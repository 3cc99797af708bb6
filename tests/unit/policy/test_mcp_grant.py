"""The policy's words for an MCP server, read strictly."""

from __future__ import annotations

import json

import pytest

from keyhole.model.errors import Unparsable
from keyhole.policy.disclose import disclose
from keyhole.policy.judges import make_judge
from keyhole.policy.mcp.judge import McpJudge
from keyhole.policy.mcp_grant import (
    MAX_ARGUMENTS,
    McpGrant,
    ToolGrant,
    read_endpoint,
    read_prompt,
    read_resource,
    read_tool,
    split_uri,
)
from keyhole.policy.summary import summarise
from tests.rigs.policies import loaded, messages

FULL = """
[services.server]
tools = ["list_*", { name = "get", where = { team = "ENG" } }]
resources = ["docs://**"]
prompts = ["review"]
server_requests = ["roots", "elicitation"]
endpoints = ["/mcp"]
pin = true
"""
OWN = '[services.own]\nhosts = ["own.example"]\nallow = ["GET /**"]\n'


def test_a_tool_is_a_pattern_or_a_table() -> None:
    assert read_tool("list_*") == ToolGrant("list_*")
    constrained = read_tool({"name": "get", "where": {"team": "ENG", "n": [1, 2], "x": True}})
    assert str(constrained) == "get where team = ENG, n = 1 or 2, x = true"
    assert str(read_tool({"name": "get"})) == "get"


@pytest.mark.parametrize(
    "value",
    [
        7,
        "",
        "two words",
        "größe",
        {"where": {}},
        {"name": 7},
        {"name": "get", "when": {}},
        {"name": "get", "where": []},
        {"name": "get", "where": {str(n): 1 for n in range(17)}},
        {"name": "get", "where": {"a": 1.5}},
        {"name": "get", "where": {"a": []}},
        {"name": "get", "where": {"a": {}}},
        {"name": "get", "where": {"a": ["x"] * 17}},
    ],
)
def test_a_tool_that_is_written_otherwise_is_refused(value: object) -> None:
    with pytest.raises(Unparsable):
        read_tool(value)


def test_arguments_that_are_compared_are_few_i12() -> None:
    """Attack: 100,000 arguments, each compared with every condition. Control: as many as may be."""
    grant = read_tool({"name": "get", "where": {"team": "ENG"}})
    for more, flaw in ((MAX_ARGUMENTS - 1, ""), (MAX_ARGUMENTS, "team")):
        assert grant.flaw({"team": "ENG", **{f"a{n}": n for n in range(more)}}) == flaw
        assert grant.flaw({"team": ["ENG"] * (more + 1)}) == flaw
    assert read_tool("get").flaw({f"a{n}": n for n in range(5000)}) == ""


def test_resources_prompts_and_endpoints_have_their_forms() -> None:
    assert read_prompt("review_*") == "review_*"
    assert read_endpoint("/mcp?read_only=true") == "/mcp?read_only=true"
    assert McpGrant(resources=(read_resource("**"),)).grants_resource("file:///any/thing?x#y")
    for text in ("docs", "docs://a b", "", "://x", "docs://a**"):
        with pytest.raises(Unparsable):
            read_resource(text)
    for text in ("mcp", "/m cp", "/mcp#x", ""):
        with pytest.raises(Unparsable):
            read_endpoint(text)


def test_a_star_ends_at_the_parts_of_a_uri() -> None:
    grant = McpGrant(resources=(read_resource("a://x/*"), read_resource("b://**")))
    assert grant.grants_resource("a://x/y")
    assert grant.grants_resource("b://x/y?z#w")
    for uri in ("a://x/y/z", "a://x/y?z", "a://x/y#z", "a://X/y", "c://x", "a:" + "x" * 2000, "x"):
        assert not grant.grants_resource(uri)


def test_a_uri_that_leads_elsewhere_for_a_server_is_not_plain() -> None:
    assert split_uri("file:///a") == ("file:", "/", "", "/", "", "/", "a")
    for uri in ("file:///a/../b", "file:///./b", "file:///a%2E%2e/b", "file:///a%252e", "a:\\b"):
        assert split_uri(uri) is None


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("docs://guide/{page}", True),
        ("docs://{+path}", True),
        ("docs://guide/x/{page}", False),
        ("other://{page}", False),
        ("docs://fixed", True),
        ("docs://fixes", False),
        ("x" * 2000, False),
    ],
)
def test_a_template_is_listed_where_it_may_give_a_granted_resource(
    template: str, shown: bool
) -> None:
    grant = McpGrant(resources=(read_resource("docs://guide/*"), read_resource("docs://fixed")))
    assert grant.lists_template(template) is shown


def test_names_longer_than_any_server_has_are_not_granted() -> None:
    grant = McpGrant(tools=(ToolGrant("*", (("a", ("*",)),)),), prompts=("*",))
    long = "x" * 1025
    assert grant.lists_tool("x")
    assert not grant.lists_tool(long)
    assert not grant.grants_prompt(long)
    anything = McpGrant(resources=(read_resource("**"),))
    assert anything.lists_template("docs://a" + "/a" * 28)
    assert not anything.lists_template("docs://a" + "/a" * 30)
    assert not anything.lists_template("docs://" + long)
    assert grant.argument_flaw("x", {"a": "y"}) is None
    assert grant.argument_flaw("x", {"a": long}) == "a"


def test_a_policy_shows_what_it_grants_of_a_server() -> None:
    lines = {line.text: line.alarm for line in summarise(loaded(FULL).policy)}
    assert lines["tools list_*, get where team = ENG"] is None
    assert "refuses tools that are new or have changed" in lines
    assert "resources docs://**" in lines
    assert "prompts review" in lines
    assert "messages go to /mcp" in lines
    assert lines["answers the server's elicitation, roots"] is not None
    plain = [line.text for line in summarise(loaded("[services.server]\n").policy)]
    assert "tools nothing" in plain
    told = json.loads(disclose(loaded(FULL).policy))["services"][0]["mcp"]
    assert told["tools"] == ["list_*", "get where team = ENG"]
    assert told["resources"] == ["docs://**"]
    assert told["pin"] is True


def test_keys_of_mcp_are_for_servers_of_mcp() -> None:
    for line in ('tools = ["x"]', "pin = true", 'endpoints = ["/mcp"]'):
        assert "is for servers of MCP" in messages(OWN + line)
    assert "roots" in messages('[services.server]\nserver_requests = ["root"]\n')


def test_only_a_server_of_mcp_has_the_judge() -> None:
    server, own = loaded(FULL + OWN).policy.services
    assert isinstance(make_judge(server), McpJudge)
    assert make_judge(own) is None
