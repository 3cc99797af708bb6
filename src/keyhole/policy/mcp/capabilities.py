"""Takes abilities out of a client's message that the policy does not open.

A server that is told of no ability asks for none, and its tools find another way at once; one that
asks all the same is stopped by `server_messages.py`. Everything else in the message stays byte for
byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from keyhole.policy.mcp.client_messages import CAPABILITIES
from keyhole.policy.mcp.raw_messages import read_list, read_table, write_part

if TYPE_CHECKING:
    from collections.abc import Collection


def strip_capabilities(body: bytes, opened: Collection[str]) -> bytes:
    """The body with only those capabilities of its client that are opened. Raises Malformed."""
    if body.lstrip(b" \t\r\n").startswith(b"["):
        return write_part([Raw(_strip(item, opened)) for item in read_list(body)])
    return _strip(body, opened)


def _strip(message: bytes | Raw, opened: Collection[str]) -> bytes:
    members = read_table(message)
    if "params" in members:
        params = read_table(members["params"])
        _narrow(params, "capabilities", opened)
        if "_meta" in params:
            meta = read_table(params["_meta"])
            _narrow(meta, CAPABILITIES, opened)
            params["_meta"] = Raw(write_part(meta))
        members["params"] = Raw(write_part(params))
    return write_part(members)


def _narrow(table: dict[str, Raw], name: str, opened: Collection[str]) -> None:
    if name in table:
        said = read_table(table[name])
        left = {each: value for each, value in said.items() if each in opened}
        table[name] = Raw(write_part(left))
