"""The policy's reference for people (docs/policy-reference.md) and for editors (JSON Schema).

Both are made from the one table in `schema.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keyhole.policy.schema import DESKTOP_KEYS, GATEWAY_KEYS, KEYS, SERVICE, PolicyKey

if TYPE_CHECKING:
    from collections.abc import Iterable

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The dialect that TOML editors understand."""


def json_schema(services: Iterable[str] = (), presets: Iterable[str] = ()) -> dict[str, Any]:
    """A JSON Schema of keyhole.toml. An editor completes the names of services and presets."""
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
    _name_services(root, sorted(services))
    if names := sorted(presets):
        listed = root["properties"]["egress"]["properties"]["presets"]
        listed["items"] = listed["items"] | {"enum": names}
    return root


def _name_services(root: dict[str, Any], names: list[str]) -> None:
    """Offer each catalogue name as the name of a service and for `use`; others stay allowed."""
    if not names:
        return
    table = root["properties"]["services"]
    each = table["additionalProperties"]
    each["properties"]["use"] |= {"enum": names}
    root["definitions"] = {"service": each}
    reference = {"$ref": "#/definitions/service"}
    table["additionalProperties"] = reference
    table["properties"] = dict.fromkeys(names, reference)


def _child(node: dict[str, Any], part: str) -> dict[str, Any]:
    table: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    if part == SERVICE:
        if node["additionalProperties"] is False:
            node["additionalProperties"] = table
        found: dict[str, Any] = node["additionalProperties"]
        return found
    child: dict[str, Any] = node["properties"].setdefault(part, table)
    return child


def _described(key: PolicyKey) -> str:
    return f"{key.meaning}. Default: {key.shown.replace('`', '')}."


def key_table() -> str:
    """The table of keys, in Markdown."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in KEYS:
        cells = (f"`{key.dotted}`", key.kind.name, key.shown, key.meaning)
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def user_table() -> str:
    """The keys that are only in the user's own config.toml, in Markdown."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    keys = (*GATEWAY_KEYS, *DESKTOP_KEYS)
    rows += [f"| `{key.dotted}` | {key.shown} | {key.meaning} |" for key in keys]
    return "\n".join(rows)
