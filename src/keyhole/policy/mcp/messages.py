"""JSON-RPC as MCP has it: a client's message, read so that no server can read another one.

Used by `client_messages.py`. A message has only the members that JSON-RPC defines, and exactly one
meaning: a request, a notification, or a response.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from keyhole.wire.strict_json import JsonValue

MessageId: TypeAlias = str | int

MAX_BATCH = 64
"""Messages in one batch; clients send one or two."""

MAX_ID = 256
"""Characters of a message's id."""

LARGEST_ID = 2**53 - 1
"""The largest number that every JSON reader takes for the same one."""

MAX_METHOD = 128
"""Characters of a method's name."""

_MEMBERS = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_VERSION = "2.0"


class MessageKind(enum.Enum):
    """The three kinds of JSON-RPC."""

    REQUEST = enum.auto()
    NOTIFICATION = enum.auto()
    RESPONSE = enum.auto()


class Message(Struct, frozen=True):
    """One message of a client."""

    kind: MessageKind
    id: MessageId | None
    method: str
    """Empty for a response."""
    params: dict[str, JsonValue]
    """Of a response: nothing."""
    failed: bool = False
    """Whether a response is an error."""


def read_messages(value: JsonValue) -> list[Message]:
    """The messages of a body: one, or a batch. Raises Malformed."""
    if not isinstance(value, list):
        return [_read(value)]
    if not 0 < len(value) <= MAX_BATCH:
        raise Malformed(f"a batch has from 1 to {MAX_BATCH} messages")
    messages = [_read(each) for each in value]
    ids = [message_key(each.id) for each in messages if each.kind is MessageKind.REQUEST]
    if len(set(ids)) != len(ids):
        raise Malformed("two requests of a batch have the same id")
    return messages


def _read(value: JsonValue) -> Message:
    if not isinstance(value, dict):
        raise Malformed("a message is an object")
    # Attack: servers in Go and .NET read `Method` as `method`, and the last of both.
    if not value.keys() <= _MEMBERS:
        raise Malformed("a message has a member that JSON-RPC does not define")
    if value.get("jsonrpc") != _VERSION:
        raise Malformed("a message is not of JSON-RPC 2.0")
    given = read_id(value["id"]) if "id" in value else None
    if "method" not in value:
        return _read_response(value, given)
    method, params = value["method"], value.get("params", {})
    if "result" in value or "error" in value:
        raise Malformed("a message is both a request and a response")
    if not isinstance(method, str) or len(method) > MAX_METHOD:
        raise Malformed("a method is a short text")
    if not isinstance(params, dict):
        raise Malformed("the parameters of a message are an object")
    kind = MessageKind.NOTIFICATION if given is None else MessageKind.REQUEST
    return Message(kind, given, method, params)


def _read_response(value: dict[str, JsonValue], given: MessageId | None) -> Message:
    if given is None or "params" in value or ("result" in value) is ("error" in value):
        raise Malformed("a response has an id, and either a result or an error")
    if not isinstance(value.get("error", {}), dict):
        raise Malformed("an error is an object")
    return Message(MessageKind.RESPONSE, given, "", {}, failed="error" in value)


def read_id(value: object) -> MessageId:
    """A message's id. MCP has no null, and fractions are read in many ways. Raises Malformed."""
    if isinstance(value, str) and len(value) <= MAX_ID:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_ID:
        return value
    raise Malformed("an id is a short text or a whole number")


def message_key(given: object) -> str:
    """The id as a key, which tells 1 from "1"."""
    return f"{type(given).__name__}:{given}"


def check_names(params: dict[str, JsonValue], known: frozenset[str]) -> None:
    """Refuse parameters that are not known. Raises Malformed.

    An unknown one could be an extension that makes the server do more, or a second spelling of a
    known one.
    """
    unknown = sorted(params.keys() - known)
    if unknown:
        raise Malformed(f"its parameter {unknown[0][:64]!r} is not known")
