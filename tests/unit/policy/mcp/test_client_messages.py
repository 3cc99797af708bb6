"""A client's messages: what the policy grants is sent, and everything else is not (I3)."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed
from keyhole.policy.mcp.client_messages import (
    CAPABILITIES,
    MAX_SUBSCRIBED,
    Outcome,
    Ruling,
    judge_message,
)
from keyhole.policy.mcp.memory import McpMemory
from keyhole.policy.mcp.messages import read_messages
from keyhole.policy.mcp_grant import (
    McpGrant,
    ServerRequest,
    ToolGrant,
    read_resource,
)

GRANT = McpGrant(
    tools=(
        ToolGrant("list_*"),
        ToolGrant("get_issue", (("team", ("ENG", "OPS")), ("limit", (5, 10)))),
        ToolGrant("get_issue", (("public", (True,)),)),
    ),
    resources=(read_resource("docs://guide/*"),),
    prompts=("review_*",),
)
OPEN = McpGrant(server_requests=frozenset(ServerRequest))
SENT, REFUSED, SWALLOWED = Outcome.SEND, Outcome.REFUSE, Outcome.SWALLOW


def judge(
    method: str,
    params: dict[str, Any],
    grant: McpGrant = GRANT,
    memory: McpMemory | None = None,
) -> Ruling:
    value: Any = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    (message,) = read_messages(value)
    return judge_message(grant, memory or McpMemory(grant), message)


def notify(method: str, grant: McpGrant = GRANT) -> Ruling:
    (message,) = read_messages({"jsonrpc": "2.0", "method": method})
    return judge_message(grant, McpMemory(grant), message)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("ping", {}),
        ("tools/list", {"cursor": "x", "_meta": {"progressToken": 1}}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("prompts/list", {}),
        ("logging/setLevel", {"level": "debug"}),
        ("server/discover", {}),
        ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}),
        ("tools/call", {"name": "list_issues"}),
        ("tools/call", {"name": "list_issues", "arguments": None}),
        ("tools/call", {"name": "get_issue", "arguments": {"team": "ENG", "limit": 10, "x": []}}),
        ("tools/call", {"name": "get_issue", "arguments": {"team": ["ENG", "OPS"], "limit": 10}}),
        ("tools/call", {"name": "get_issue", "arguments": {"public": True}}),
        ("prompts/get", {"name": "review_code", "arguments": {}}),
        ("resources/read", {"uri": "docs://guide/one"}),
        ("resources/subscribe", {"uri": "docs://guide/one"}),
        ("resources/unsubscribe", {"uri": "docs://guide/one"}),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "review_x"}, "argument": {}},
        ),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs://guide/{page}"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs://guide/one"}}),
        ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["docs://guide/a"]}}),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": ["docs://guide/a"] * MAX_SUBSCRIBED}},
        ),
    ],
)
def test_a_granted_request_is_sent(method: str, params: dict[str, Any]) -> None:
    assert judge(method, params).outcome is SENT


@pytest.mark.parametrize(
    ("method", "params", "reason"),
    [
        ("tools/call", {"name": "delete_issue"}, Reason.TOOL_NOT_GRANTED),
        ("tools/call", {"name": "xlist_issues"}, Reason.TOOL_NOT_GRANTED),
        ("tools/call", {"name": "LIST_issues"}, Reason.TOOL_NOT_GRANTED),
        ("tools/call", {"name": "get_issue"}, Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"team": "ENG"}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"team": "ENGX", "limit": 10}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"team": ["ENG", "HR"], "limit": 10}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"team": [], "limit": 10}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"public": 1}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue", "arguments": {"team": "ENG", "limit": 10.0}},
         Reason.ARGUMENT_NOT_GRANTED),
        # A server in Go takes the last of both for the same argument.
        ("tools/call", {"name": "get_issue",
                        "arguments": {"team": "ENG", "limit": 10, "Team": "HR"}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "get_issue",
                        "arguments": {"public": True, "PUBLIC": False}},
         Reason.ARGUMENT_NOT_GRANTED),
        ("tools/call", {"name": "list_issues", "task": {"ttl": 1}}, Reason.MCP_CLOSED),
        ("tools/call", {"name": "list_issues", "inputResponses": {}}, Reason.MCP_CLOSED),
        ("prompts/get", {"name": "other"}, Reason.PROMPT_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/one/two"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/.."}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/%2e%2e"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/a%2Fb"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/a\\b"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/a?as=admin"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/read", {"uri": "docs://guide/\u212a"}, Reason.RESOURCE_NOT_GRANTED),
        ("resources/subscribe", {"uri": "file:///etc/passwd"}, Reason.RESOURCE_NOT_GRANTED),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "x"}},
         Reason.PROMPT_NOT_GRANTED),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "file:///{path}"}},
         Reason.RESOURCE_NOT_GRANTED),
        # Granted in part: the completions of `shelf` would name what is not.
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs://{shelf}/{page}"}},
         Reason.RESOURCE_NOT_GRANTED),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs://guide/{+page}"}},
         Reason.RESOURCE_NOT_GRANTED),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "docs://guide/../{page}"}},
         Reason.RESOURCE_NOT_GRANTED),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["file:///x"]}},
         Reason.RESOURCE_NOT_GRANTED),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [7]}},
         Reason.RESOURCE_NOT_GRANTED),
        ("tools/Call", {"name": "list_issues"}, Reason.MCP_CLOSED),
        ("tools/call ", {"name": "list_issues"}, Reason.MCP_CLOSED),
        ("TOOLS/CALL", {"name": "list_issues"}, Reason.MCP_CLOSED),
        ("tools\u2215call", {"name": "list_issues"}, Reason.MCP_CLOSED),
        ("tasks/list", {}, Reason.MCP_CLOSED),
        ("tasks/result", {"taskId": "1"}, Reason.MCP_CLOSED),
        ("sampling/createMessage", {}, Reason.MCP_CLOSED),
        ("notifications/initialized", {}, Reason.MCP_CLOSED),
        ("vendor/" + "x" * 100, {}, Reason.MCP_CLOSED),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_reason(
    method: str, params: dict[str, Any], reason: Reason
) -> None:
    """The control is the test above: the same requests pass with what is granted."""
    ruling = judge(method, params)
    assert (ruling.outcome, ruling.reason) == (REFUSED, reason)
    assert ruling.why


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "list_issues", "Name": "delete_issue"}),
        ("tools/call", {"name": "list_issues", "asAdmin": True}),
        ("tools/call", {"name": ["list_issues"]}),
        ("tools/call", {}),
        ("tools/call", {"name": "list_issues", "arguments": []}),
        ("tools/call", {"name": "x" * 1025}),
        ("tools/list", {"cursor": "x", "all": True}),
        ("completion/complete", {"ref": "x"}),
        ("completion/complete", {"ref": {"type": "ref/other", "uri": "docs://guide/{a}"}}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "review_x", "Name": "y"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "x", "Uri": "y"}}),
        ("subscriptions/listen", {"notifications": []}),
        ("subscriptions/listen", {"notifications": {"taskIds": ["1"]}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "docs://guide/a"}}),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": ["docs://guide/a"] * (MAX_SUBSCRIBED + 1)}},
        ),
    ],
)
def test_parameters_that_could_be_read_in_another_way_are_malformed(
    method: str, params: dict[str, Any]
) -> None:
    with pytest.raises(Malformed):
        judge(method, params)


def test_nothing_can_be_called_where_the_policy_names_nothing() -> None:
    """I3: the zero of a grant denies."""
    for method, params in (
        ("tools/call", {"name": "list_issues"}),
        ("prompts/get", {"name": "review_code"}),
        ("resources/read", {"uri": "docs://guide/one"}),
    ):
        assert judge(method, params, McpGrant()).outcome is REFUSED
        assert judge(method, params).outcome is SENT


def test_notifications_that_are_not_open_are_swallowed() -> None:
    for method in ("initialized", "cancelled", "progress"):
        assert notify(f"notifications/{method}").outcome is SENT
    assert notify("notifications/roots/list_changed", OPEN).outcome is SENT
    for method in ("notifications/roots/list_changed", "tools/call", "vendor/thing"):
        ruling = notify(method)
        assert (ruling.outcome, ruling.reason) == (SWALLOWED, Reason.MCP_CLOSED)


def test_an_answer_is_sent_only_to_a_question_that_the_server_asked() -> None:
    memory = McpMemory(GRANT)
    memory.asked.put("int:1", True)
    memory.asked.put("int:2", False)
    memory.asked.put("int:3", False)

    def respond(given: str | int, **content: dict[str, Any]) -> Outcome:
        (message,) = read_messages({"jsonrpc": "2.0", "id": given, **content})
        return judge_message(GRANT, memory, message).outcome

    assert respond("1", result={}) is SWALLOWED  # another id than 1
    assert respond(1, result={}) is SENT
    assert respond(1, result={}) is SWALLOWED  # once
    assert respond(2, result={}) is SWALLOWED  # the question is closed
    assert respond(3, error={"code": -32601}) is SENT  # and may be refused
    assert respond(9, error={}) is SWALLOWED


def test_abilities_that_are_not_open_are_taken_out() -> None:
    said: dict[str, Any] = {"sampling": {}, "roots": {}}
    first = {"protocolVersion": "x", "capabilities": said, "clientInfo": {}}
    modern = {"name": "list_issues", "_meta": {CAPABILITIES: said}}
    assert judge("initialize", first).strips
    assert judge("tools/call", modern).strips
    assert not judge("initialize", first, OPEN).strips
    assert not judge("initialize", first | {"capabilities": {}}).strips
    assert not judge("initialize", first | {"capabilities": None}).strips
    assert not judge("tools/list", {"_meta": {}}).strips
    again = {"name": "list_issues", "inputResponses": {"a": {}}}
    assert judge("tools/call", again, McpGrant(GRANT.tools, server_requests=OPEN.server_requests))


def test_a_tool_that_has_changed_cannot_be_called_where_it_is_pinned() -> None:
    pinned = McpGrant(GRANT.tools, pin=True, accepted=(("list_issues", "1"),))
    memory = McpMemory(pinned)
    call = {"name": "list_issues"}
    assert judge("tools/call", call, pinned, memory).outcome is SENT
    memory.pins.see("list_issues", "2")
    ruling = judge("tools/call", call, pinned, memory)
    assert (ruling.outcome, ruling.reason) == (REFUSED, Reason.TOOL_CHANGED)
    assert judge("tools/call", {"name": "list_new"}, pinned, memory).outcome is REFUSED
