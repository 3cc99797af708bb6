"""Filters a server's messages: lists show what is granted, and closed questions are not asked.

Called by `answers.py` with each message of an answer or a stream. What it does depends on what a
message is, never on which request it claims to answer: a list of tools in any response is filtered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, Struct, UnsetType

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed
from keyhole.model.text import visible
from keyhole.policy.mcp.client_messages import MAX_SHOWN
from keyhole.policy.mcp.messages import MAX_BATCH, message_key, read_id
from keyhole.policy.mcp.pins import PinState, digest_tool
from keyhole.policy.mcp.raw_messages import (
    MAX_MARKS,
    RawEntry,
    RawError,
    RawMessage,
    RawMethod,
    RawResult,
    RawTool,
    RawUri,
    check_marks,
    read_list,
    read_part,
    read_table,
    read_value,
    write_part,
)
from keyhole.policy.mcp_grant import REQUEST_METHODS, SeenTool

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.policy.mcp.memory import McpMemory
    from keyhole.policy.mcp_grant import McpGrant

REFUSED = 403
"""The code of our errors: one that neither JSON-RPC nor MCP defines."""

CLOSED_METHOD = "keyhole/closed"
"""The method that a closed question of the server's gets. No client knows it, so each answers at
once that there is no such method, and the server does not wait."""

MAX_LISTED = 1024
"""Entries of one list that are passed on."""

ELICITATION = "elicitation/create"
URL_ELICITATION = -32042
"""The error by which a server sends the person to an address first."""

_VERSION = "2.0"
_NOTIFICATIONS = frozenset(
    {
        "notifications/cancelled",
        "notifications/message",
        "notifications/progress",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    }
)
_UPDATED = "notifications/resources/updated"
_ELICITED = "notifications/elicitation/complete"
_CAPABILITIES = frozenset({"tools", "resources", "prompts", "logging", "completions"})
"""Abilities of a server that are judged; others (tasks, extensions) are hidden from the client."""


_STATES = {
    PinState.FIRST: "the tool {} is seen for the first time",
    PinState.NEW: "the tool {} is new",
    PinState.CHANGED: "the description of the tool {} has changed",
}


class ServerNote(Struct, frozen=True):
    """Something about a server that is recorded."""

    reason: Reason
    key: str
    what: str
    seen: SeenTool | None = None


def error_of(given: object, why: str) -> dict[str, object]:
    """An error of JSON-RPC in the gateway's own name."""
    error = {"code": REFUSED, "message": f"keyhole: {why}"}
    return {"jsonrpc": _VERSION, "id": given, "error": error}


class ServerFilter:
    """Filters the messages of one server for one session."""

    def __init__(
        self, grant: McpGrant, memory: McpMemory, note: Callable[[ServerNote], None]
    ) -> None:
        self._grant = grant
        self._memory = memory
        self._note = note
        self._lists: tuple[tuple[str, Callable[[Raw], bool]], ...] = (
            ("tools", self._keeps_tool),
            ("resources", lambda raw: grant.grants_resource(_entry(raw).uri)),
            ("resourceTemplates", lambda raw: grant.lists_template(_entry(raw).uriTemplate)),
            ("prompts", lambda raw: grant.grants_prompt(_entry(raw).name)),
        )

    def filter(self, data: bytes) -> bytes:
        """What may be passed on of a message or a batch; nothing, if it is dropped. Raises
        Malformed."""
        check_marks(data, MAX_MARKS)
        if not data.lstrip(b" \t\r\n").startswith(b"["):
            return self._one(data)
        items = read_list(data)
        if len(items) > MAX_BATCH:
            raise Malformed(f"its batch has more than {MAX_BATCH} messages")
        kept = [Raw(passed) for item in items if (passed := self._one(item))]
        return write_part(kept) if kept else b""

    def _one(self, data: bytes | Raw) -> bytes:
        message = read_part(data, RawMessage)
        if message.jsonrpc != _VERSION:
            raise Malformed("its message is not of JSON-RPC 2.0")
        answers = message.result is not UNSET or message.error is not UNSET
        method = message.method
        if isinstance(method, UnsetType):
            return self._response(message)
        if answers:
            raise Malformed("its message is both a request and a response")
        if message.id is UNSET:
            return self._notification(method, message)
        return self._request(method, message)

    # ── what the server asks ──────────────────────────────────────────────────────────────────────

    def _request(self, method: str, message: RawMessage) -> bytes:
        given = read_id(read_value(_raw(message.id)))
        opened = method == "ping" or self._is_open(method)
        self._memory.asked.put(message_key(given), opened)
        if opened:
            return write_part(message)
        self._note_closed(method)
        return write_part({"jsonrpc": _VERSION, "id": given, "method": CLOSED_METHOD})

    def _is_open(self, method: str) -> bool:
        return REQUEST_METHODS.get(method) in self._grant.server_requests

    def _note_closed(self, method: str) -> str:
        """Record a closed question of the server's, and return the line about it."""
        word = REQUEST_METHODS.get(method)
        opens = f'; server_requests = ["{word}"] opens it' if word else ""
        what = f"the server asks its client by {_shown(method)}, which is closed{opens}"
        self._note(ServerNote(Reason.MCP_CLOSED, "server_requests", what))
        return what

    def _notification(self, method: str, message: RawMessage) -> bytes:
        if method == _UPDATED:
            uri = read_part(_raw(message.params), RawUri).uri
            return write_part(message) if self._grant.grants_resource(uri) else b""
        passes = method in _NOTIFICATIONS or (method == _ELICITED and self._is_open(ELICITATION))
        return write_part(message) if passes else b""

    # ── what the server answers ───────────────────────────────────────────────────────────────────

    def _response(self, message: RawMessage) -> bytes:
        if (message.result is UNSET) is (message.error is UNSET) or message.id is UNSET:
            raise Malformed("its response has not one id, and either a result or an error")
        given = read_value(_raw(message.id))
        why = self._memory.refused.take(message_key(given))
        if why is not None:
            return write_part(error_of(given, why))
        if not isinstance(message.result, UnsetType):
            result = read_part(message.result, RawResult)
            closed = self._closed_question(result.inputRequests)
            if closed is None:
                message.result = self._result(result, message.result)
        else:
            closed = self._closed_by_error(message.error)
        if closed is not None:
            return write_part(error_of(given, self._note_closed(closed)))
        return write_part(message)

    def _closed_by_error(self, error: Raw | UnsetType) -> str | None:
        """The method of a question that is closed, if an error sends the person to an address."""
        asks = read_part(_raw(error), RawError).code == URL_ELICITATION
        return ELICITATION if asks and not self._is_open(ELICITATION) else None

    def _closed_question(self, requests: Raw | UnsetType) -> str | None:
        """The method of the first question of an unfinished result that is closed."""
        if isinstance(requests, UnsetType):
            return None
        methods = (read_part(each, RawMethod).method for each in read_table(requests).values())
        return next((method for method in methods if not self._is_open(method)), None)

    def _result(self, result: RawResult, data: Raw) -> Raw:
        """The result with what is granted; `data` is its text."""
        changed = self._filter_lists(result)
        if not isinstance(result.capabilities, UnsetType):
            said = read_table(result.capabilities)
            left = {name: value for name, value in said.items() if name in _CAPABILITIES}
            result.capabilities = Raw(write_part(left))
            changed = True
        return Raw(write_part(result)) if changed else data

    def _filter_lists(self, result: RawResult) -> bool:
        changed = False
        for name, keeps in self._lists:
            found = getattr(result, name)
            if found is not UNSET:
                kept = [raw for raw in read_list(found)[:MAX_LISTED] if keeps(raw)]
                setattr(result, name, Raw(write_part(kept)))
                changed = True
        return changed

    def _keeps_tool(self, raw: Raw) -> bool:
        """Whether a tool is listed: granted, and as it was accepted where the policy pins it."""
        name = _entry(raw).name
        if not self._grant.lists_tool(name):
            return False
        digest = digest_tool(read_part(raw, RawTool))
        state = self._memory.pins.see(name, digest)
        refused = self._memory.pins.refuses(name)
        if state is PinState.SAME:
            return not refused
        reason = Reason.TOOL_CHANGED if refused else Reason.TOOL_DIFFERS
        if state is PinState.FIRST:
            reason = Reason.TOOL_SEEN
        what = _STATES[state].format(_shown(name))
        seen = SeenTool(name, digest, not refused)
        self._note(ServerNote(reason, "pin" if refused else "tools", what, seen))
        return not refused


def _entry(raw: Raw) -> RawEntry:
    return read_part(raw, RawEntry)


def _raw(value: Raw | UnsetType) -> Raw:
    return Raw(b"null") if isinstance(value, UnsetType) else value


def _shown(text: str) -> str:
    return f"'{visible(text[:MAX_SHOWN])}'"
