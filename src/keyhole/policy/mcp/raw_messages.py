"""A server's messages in parts: what is judged is read, everything else stays as its bytes.

A message is written again from its parts, so that a client sees what was judged, also where a name
stands twice. Used by `server_messages.py`, and by `capabilities.py` for messages of clients, which
were read strictly before.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from keyhole.model.errors import Malformed

MAX_ANSWER = 4 << 20
"""Bytes of one message of a server: a screenshot as base64 has less."""

MAX_MARKS = 200_000
"""Commas and opening brackets of one message, which take 10 ms (I12)."""

MAX_LIST_MARKS = 50_000
"""The same, of a list whose items are judged one by one."""

T = TypeVar("T")


class RawMessage(Struct, omit_defaults=True):
    """The members of a message of JSON-RPC."""

    jsonrpc: str = ""
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class RawResult(Struct, omit_defaults=True):
    """The members of a result that are judged, and those beside them in lists and greetings."""

    tools: Raw | UnsetType = UNSET
    resources: Raw | UnsetType = UNSET
    resourceTemplates: Raw | UnsetType = UNSET
    prompts: Raw | UnsetType = UNSET
    capabilities: Raw | UnsetType = UNSET
    inputRequests: Raw | UnsetType = UNSET
    resultType: Raw | UnsetType = UNSET
    nextCursor: Raw | UnsetType = UNSET
    protocolVersion: Raw | UnsetType = UNSET
    supportedVersions: Raw | UnsetType = UNSET
    serverInfo: Raw | UnsetType = UNSET
    instructions: Raw | UnsetType = UNSET
    requestState: Raw | UnsetType = UNSET
    ttlMs: Raw | UnsetType = UNSET
    cacheScope: Raw | UnsetType = UNSET
    _meta: Raw | UnsetType = UNSET


class RawEntry(Struct):
    """An entry of a list: what names it."""

    name: str = ""
    uri: str = ""
    uriTemplate: str = ""


class RawTool(Struct, omit_defaults=True):
    """What a model sees of a tool."""

    name: str = ""
    title: Any = None
    description: Any = None
    inputSchema: Any = None
    outputSchema: Any = None
    annotations: Any = None


class RawMethod(Struct):
    """What a question of a server is about."""

    method: str = ""


class RawError(Struct):
    """The code of an error."""

    code: int | float = 0


class RawUri(Struct):
    """The resource that a notification is about."""

    uri: str = ""


_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def read_part(data: bytes | Raw, kind: type[T]) -> T:
    """A message or a part of one. Raises Malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise Malformed("its message is not of MCP") from None


def read_list(data: bytes | Raw) -> list[Raw]:
    """The items of a list. Raises Malformed."""
    check_marks(data, MAX_LIST_MARKS)
    return read_part(data, list[Raw])


def read_table(data: bytes | Raw) -> dict[str, Raw]:
    """The members of an object. Raises Malformed."""
    check_marks(data, MAX_LIST_MARKS)
    return read_part(data, dict[str, Raw])


def read_value(data: bytes | Raw) -> object:
    """A small value as a whole. Raises Malformed."""
    check_marks(data, MAX_LIST_MARKS)
    return read_part(data, object)


def check_marks(data: bytes | Raw, most: int) -> None:
    """Refuse a text that takes long to read. Raises Malformed."""
    text = bytes(data)
    if text.count(b",") + text.count(b"[") + text.count(b"{") > most:
        raise Malformed(f"its message has more than {most} values")


def write_sorted(value: object) -> bytes:
    """The JSON of a value, with the members of each object in one order."""
    return _encode_sorted(value)


def write_part(value: object) -> bytes:
    """The JSON of a message, a list or a table of parts."""
    return _encode(value)
