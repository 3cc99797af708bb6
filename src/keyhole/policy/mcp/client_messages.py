"""Judges one message of a client: sent, refused, or swallowed.

Called by `judge.py` for each message of a body. A method that is not in the tables below is closed
(I3): MCP grows, and a new method may do anything.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed
from keyhole.model.text import visible
from keyhole.policy.mcp.messages import MessageKind, check_names, message_key
from keyhole.policy.mcp_grant import MAX_NAME, ServerRequest

if TYPE_CHECKING:
    from keyhole.policy.mcp.memory import McpMemory
    from keyhole.policy.mcp.messages import Message
    from keyhole.policy.mcp_grant import McpGrant
    from keyhole.wire.strict_json import JsonValue

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
"""Where a request of MCP from 2026-07-28 on says what its client can do, in `_meta`."""

MAX_SUBSCRIBED = 256
"""Resources of one subscription, each of which is compared with every pattern (I12)."""

MAX_SHOWN = 80
"""Characters of a client's name for something that are repeated in a refusal."""

_META = frozenset({"_meta"})
_AGAIN = frozenset({"_meta", "inputResponses", "requestState"})
"""Parameters of a request that is sent again with the client's answers to the server."""

_FREE = {
    "ping": _META,
    "logging/setLevel": _META | {"level"},
    "server/discover": _META,
    "tools/list": _META | {"cursor"},
    "resources/list": _META | {"cursor"},
    "resources/templates/list": _META | {"cursor"},
    "prompts/list": _META | {"cursor"},
}
"""Requests that anyone may make: their answers are filtered."""

_NAMED = {
    "initialize": _META | {"protocolVersion", "capabilities", "clientInfo"},
    "tools/call": _AGAIN | {"name", "arguments"},
    "prompts/get": _AGAIN | {"name", "arguments"},
    "resources/read": _AGAIN | {"uri"},
    "resources/subscribe": _META | {"uri"},
    "resources/unsubscribe": _META | {"uri"},
    "completion/complete": _META | {"ref", "argument", "context"},
    "subscriptions/listen": _META | {"notifications"},
}

_NOTIFICATIONS = frozenset(
    {"notifications/initialized", "notifications/cancelled", "notifications/progress"}
)
_ROOTS_CHANGED = "notifications/roots/list_changed"
_LISTENED = frozenset(
    {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions"}
)


class Outcome(enum.Enum):
    """What becomes of a message."""

    REFUSE = enum.auto()
    """It is answered with an error."""
    SWALLOW = enum.auto()
    """It is not sent, and nobody waits for an answer."""
    SEND = enum.auto()


class Ruling(Struct, frozen=True):
    """The decision on one message."""

    outcome: Outcome = Outcome.REFUSE
    reason: Reason = Reason.MCP_CLOSED
    key: str = ""
    """The key of the service that decided, as `tools`."""
    why: str = ""
    strips: bool = False
    """Whether capabilities that the policy does not open must be taken out of it."""


_SEND = Ruling(Outcome.SEND, Reason.RULE)


def judge_message(grant: McpGrant, memory: McpMemory, message: Message) -> Ruling:
    """Judge one message. Raises Malformed."""
    if message.kind is MessageKind.RESPONSE:
        return _judge_response(memory, message)
    if message.kind is MessageKind.NOTIFICATION:
        return _judge_notification(grant, message)
    method, params = message.method, message.params
    if "task" in params:
        return _closed("the call as a task", "tasks are not read yet")
    known = _FREE.get(method) or _NAMED.get(method)
    if known is None:
        return _closed(f"the method {_shown(method)}", "it is not known")
    check_names(params, known)
    if "inputResponses" in params and not grant.server_requests:
        return _closed("answers to the server's questions", "server_requests opens them")
    ruling = _SEND if method in _FREE else _judge_named(grant, memory, method, params)
    if ruling.outcome is Outcome.SEND and _declares_closed(grant, method, params):
        return Ruling(Outcome.SEND, Reason.RULE, ruling.key, ruling.why, strips=True)
    return ruling


def _judge_response(memory: McpMemory, message: Message) -> Ruling:
    """An answer to a request of the server's, which the server must have made (I3)."""
    opened = memory.asked.take(message_key(message.id))
    if opened is None:
        why = "the server has asked nothing with this id"
        return Ruling(Outcome.SWALLOW, Reason.MCP_CLOSED, "server_requests", why)
    if not opened and not message.failed:
        why = "the policy does not open what the server asked"
        return Ruling(Outcome.SWALLOW, Reason.MCP_CLOSED, "server_requests", why)
    return _SEND


def _judge_notification(grant: McpGrant, message: Message) -> Ruling:
    method = message.method
    if method in _NOTIFICATIONS:
        return _SEND
    if method == _ROOTS_CHANGED and ServerRequest.ROOTS in grant.server_requests:
        return _SEND
    why = f"the notification {_shown(method)} is closed"
    return Ruling(Outcome.SWALLOW, Reason.MCP_CLOSED, "server_requests", why)


def _judge_named(
    grant: McpGrant, memory: McpMemory, method: str, params: dict[str, JsonValue]
) -> Ruling:
    match method:
        case "tools/call":
            return _judge_call(grant, memory, params)
        case "prompts/get":
            return _judge_prompt(grant, _text(params, "name"))
        case "completion/complete":
            return _judge_completion(grant, params)
        case "subscriptions/listen":
            return _judge_listening(grant, params)
        case "initialize":
            return _SEND
    return _judge_resource(grant, _text(params, "uri"))


def _judge_call(grant: McpGrant, memory: McpMemory, params: dict[str, JsonValue]) -> Ruling:
    name, arguments = _text(params, "name"), params.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise Malformed("the arguments of a tool are an object")
    flaw = grant.argument_flaw(name, dict(arguments))
    if flaw == "":
        why = f"the tool {_shown(name)} is not granted; add it to tools to open it"
        return Ruling(reason=Reason.TOOL_NOT_GRANTED, key="tools", why=why)
    if flaw is not None:
        why = f"the argument {_shown(flaw)} of {_shown(name)} has no value that tools permits"
        return Ruling(reason=Reason.ARGUMENT_NOT_GRANTED, key="tools", why=why)
    if memory.pins.refuses(name):
        why = (
            f"the tool {_shown(name)} is not as it was when it was accepted; "
            "`keyhole tools` shows it"
        )
        return Ruling(reason=Reason.TOOL_CHANGED, key="pin", why=why)
    return Ruling(Outcome.SEND, Reason.RULE, "tools", f"calls the tool {_shown(name)}")


def _judge_prompt(grant: McpGrant, name: str) -> Ruling:
    if grant.grants_prompt(name):
        return Ruling(Outcome.SEND, Reason.RULE, "prompts", f"uses the prompt {_shown(name)}")
    why = f"the prompt {_shown(name)} is not granted; add it to prompts to open it"
    return Ruling(reason=Reason.PROMPT_NOT_GRANTED, key="prompts", why=why)


def _judge_resource(grant: McpGrant, uri: str) -> Ruling:
    if grant.grants_resource(uri):
        return Ruling(Outcome.SEND, Reason.RULE, "resources", f"uses the resource {_shown(uri)}")
    why = f"the resource {_shown(uri)} is not granted; add it to resources to open it"
    return Ruling(reason=Reason.RESOURCE_NOT_GRANTED, key="resources", why=why)


def _judge_completion(grant: McpGrant, params: dict[str, JsonValue]) -> Ruling:
    """Completions are read from what they complete, so they need the same grant."""
    ref = params.get("ref")
    if not isinstance(ref, dict):
        raise Malformed("a completion names a prompt or a resource")
    if ref.get("type") == "ref/prompt":
        check_names(ref, frozenset({"type", "name", "title"}))
        return _judge_prompt(grant, _text(ref, "name"))
    check_names(ref, frozenset({"type", "uri"}))
    if ref.get("type") != "ref/resource":
        raise Malformed("a completion names a prompt or a resource")
    template = _text(ref, "uri")
    # Attack: a template that is granted in part, as `repo://{owner}/{name}`. The completions of its
    # variables name all that is there.
    if "{" not in template:
        return _judge_resource(grant, template)
    if grant.grants_template(template):
        return Ruling(Outcome.SEND, Reason.RULE, "resources")
    why = f"resources does not grant all that the template {_shown(template)} stands for"
    return Ruling(reason=Reason.RESOURCE_NOT_GRANTED, key="resources", why=why)


def _judge_listening(grant: McpGrant, params: dict[str, JsonValue]) -> Ruling:
    wanted = params.get("notifications", {})
    if not isinstance(wanted, dict):
        raise Malformed("a subscription names notifications")
    check_names(wanted, _LISTENED)
    uris = wanted.get("resourceSubscriptions") or []
    if not isinstance(uris, list) or len(uris) > MAX_SUBSCRIBED:
        raise Malformed(f"a subscription names at most {MAX_SUBSCRIBED} resources, in a list")
    for uri in uris:
        ruling = _judge_resource(grant, uri if isinstance(uri, str) else "")
        if ruling.outcome is not Outcome.SEND:
            return ruling
    return _SEND


def _declares_closed(grant: McpGrant, method: str, params: dict[str, JsonValue]) -> bool:
    """Whether the client says that it can do something that the policy does not open."""
    meta = params.get("_meta")
    said = [params.get("capabilities")] if method == "initialize" else []
    if isinstance(meta, dict):
        said.append(meta.get(CAPABILITIES))
    return any(isinstance(each, dict) and each.keys() - grant.server_requests for each in said)


def _text(params: dict[str, JsonValue], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise Malformed(f"its {name!r} is a text of at most {MAX_NAME} characters")
    return value


def _shown(text: str) -> str:
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return f"'{visible(cut)}'"


def _closed(what: str, hint: str) -> Ruling:
    return Ruling(reason=Reason.MCP_CLOSED, why=f"{what} is closed; {hint}")
