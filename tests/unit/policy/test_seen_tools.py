"""Tools that sessions saw: what is accepted, and what waits."""

from __future__ import annotations

from keyhole.policy.mcp_grant import MAX_TOOLS, SeenTool
from keyhole.policy.seen_tools import (
    ServiceTools,
    grants_tools,
    read_seen,
    with_accepted_tools,
)
from tests.rigs.policies import loaded

ONE, TWO = "1" * 64, "2" * 64


def test_the_first_list_is_accepted_and_a_change_waits() -> None:
    tools = ServiceTools().with_seen([SeenTool("a", ONE, True), SeenTool("b", ONE, True)])
    assert tools == ServiceTools({"a": ONE, "b": ONE}, {})
    changed = tools.with_seen([SeenTool("a", TWO, False), SeenTool("c", ONE, False)])
    assert changed == ServiceTools({"a": ONE, "b": ONE}, {"a": TWO, "c": ONE})
    assert changed.with_accepted(["a"]) == ServiceTools({"a": TWO, "b": ONE}, {"c": ONE})
    # As it was: nothing waits.
    assert changed.with_seen([SeenTool("a", ONE, False)]).waiting == {"c": ONE}
    # Not pinned: the change was noted, and is what later ones are compared with.
    assert tools.with_seen([SeenTool("a", TWO, True)]).accepted["a"] == TWO


def test_what_is_kept_is_bounded() -> None:
    """I9."""
    many = [SeenTool(str(n), ONE, True) for n in range(MAX_TOOLS + 1)]
    tools = ServiceTools().with_seen(many)
    assert len(tools.accepted) == MAX_TOOLS
    waiting = [SeenTool(f"w{n}", ONE, False) for n in range(MAX_TOOLS + 1)]
    assert len(tools.with_seen(waiting).waiting) == MAX_TOOLS


def test_a_data_planes_words_are_taken_in_known_shapes() -> None:
    """It reads hostile bytes, and may have been taken over."""
    good = ["a\x1b", ONE, True]
    assert read_seen([good]) == (SeenTool("a\\x1b", ONE, True),)
    bad = [None, [], ["a", ONE], ["a", "x", True], ["a", ONE, 1], [1, ONE, True], {"a": 1}]
    assert read_seen(bad) == ()
    assert read_seen("abc") == ()
    assert len(read_seen([good] * (MAX_TOOLS + 1))) == MAX_TOOLS


def test_a_policy_gets_what_is_accepted_of_its_servers() -> None:
    policy = loaded('[services.server]\ntools = ["a"]\n[services.model]\n').policy
    known = {"server": ServiceTools({"a": ONE}), "model": ServiceTools({"b": ONE})}
    server, model = with_accepted_tools(policy, known).services
    assert server.mcp is not None
    assert server.mcp.accepted == (("a", ONE),)
    assert model.mcp is None
    assert with_accepted_tools(policy, {}) is policy
    assert grants_tools(policy, "server")
    assert not grants_tools(policy, "model")
