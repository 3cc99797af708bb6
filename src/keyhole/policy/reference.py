"""The policy's reference for people (docs/policy.md) and for editors (JSON Schema).

Both are made from the one table in `schema.py`.
"""

from __future__ import annotations

from typing import Any

from keyhole.policy.schema import GATEWAY_KEYS, KEYS, SERVICE, Key

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that TOML editors understand."""


def json_schema() -> dict[str, Any]:
    """A JSON Schema of keyhole.toml."""
    root: dict[str, Any] = {
        "$schema": DIALECT,
        "title": "keyhole.toml",
        "description": "The policy of a Keyhole sandbox",
        "type": "object",
        "additionalProperties": False,
        "required": ["version"],
        "properties": {},
    }
    for key in KEYS:
        node = root
        for part in key.path[:-1]:
            node = _child(node, part)
        node["properties"][key.path[-1]] = dict(key.kind.schema) | {"description": _described(key)}
    return root


def _child(node: dict[str, Any], part: str) -> dict[str, Any]:
    table: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    if part == SERVICE:
        if node["additionalProperties"] is False:
            node["additionalProperties"] = table
        found: dict[str, Any] = node["additionalProperties"]
        return found
    child: dict[str, Any] = node["properties"].setdefault(part, table)
    return child


def _described(key: Key) -> str:
    return f"{key.meaning}. Default: {key.shown.replace('`', '')}."


def key_table() -> str:
    """The table of keys, in Markdown."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in KEYS:
        cells = (f"`{key.dotted}`", key.kind.name, key.shown, key.meaning)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def gateway_table() -> str:
    """The keys that stand in the user's own config.toml alone, in Markdown."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    rows += [f"| `{key.dotted}` | {key.shown} | {key.meaning} |" for key in GATEWAY_KEYS]
    return "\n".join(rows)
