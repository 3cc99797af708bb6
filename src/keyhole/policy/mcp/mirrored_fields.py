"""Fields of HTTP that repeat parts of a message, since MCP of 2026-07-28.

Attack: a server or the balancer before it acts on `Mcp-Name: delete_all`, while the body, which is
judged, says `list_all`. So a field must say what the body says.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from keyhole.policy.mcp.messages import Message
    from keyhole.wire.strict_json import JsonValue

METHOD_FIELD, NAME_FIELD, PARAM_FIELDS = "mcp-method", "mcp-name", "mcp-param-"

MAX_MIRRORED = 4096
"""Scalars of a call's arguments that are compared with fields."""

_ENCODED = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=")
_NAMES = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "resources/subscribe": "uri",
    "resources/unsubscribe": "uri",
}


def check_mirrored(fields: Mapping[str, str], messages: Sequence[Message]) -> None:
    """Compare the fields of a request with its one message. Raises Malformed."""
    mirrored = {
        name: value
        for name, value in fields.items()
        if name in (METHOD_FIELD, NAME_FIELD) or name.startswith(PARAM_FIELDS)
    }
    if not mirrored:
        return
    if len(messages) != 1:
        raise Malformed("fields for one message stand before a batch")
    message = messages[0]
    method = mirrored.pop(METHOD_FIELD, message.method)
    if method != message.method:
        raise Malformed("the field Mcp-Method names another method than the body")
    named = message.params.get(_NAMES.get(message.method, ""))
    if NAME_FIELD in mirrored and _decode(mirrored.pop(NAME_FIELD)) != named:
        raise Malformed("the field Mcp-Name names something else than the body")
    if mirrored:
        said = set(_scalars(message.params.get("arguments")))
        if not all(_decode(value) in said for value in mirrored.values()):
            raise Malformed("a field Mcp-Param-… has a value that the body does not have")


def _decode(value: str) -> str | None:
    found = _ENCODED.fullmatch(value)
    if found is None:
        return value
    try:
        return base64.b64decode(found[1], validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None


def _scalars(value: JsonValue) -> Iterator[str]:
    """The scalars of the arguments, as clients write them into fields."""
    waiting, count = [value], 0
    while waiting and count < MAX_MIRRORED:
        one, count = waiting.pop(), count + 1
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, bool):
            yield "true" if one else "false"
        elif one is not None:
            yield str(one)
