"""Reads cargo's files and variables: registries, sources that replace others, tokens.

Called by `cargo`. Only the user's cargo home is read; a project's .cargo/config.toml is
not trusted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.host.found_credential import FoundCredential
from keyhole.model.errors import Unparsable
from keyhole.model.redacted import redacted_repr
from keyhole.model.toml import parse_toml

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.preset_draft import PresetDraft

_INDEX_VARIABLE = re.compile(r"CARGO_REGISTRIES_([A-Z0-9_]+)_INDEX")


class CargoRegistry(Struct, frozen=True):
    """A registry that the user named; its URL as found may hold a password."""

    name: str
    url: str
    where: str
    credential: FoundCredential | None

    __repr__ = redacted_repr("url")


class CargoSource(Struct, frozen=True):
    """A source: its URL, and the source that replaces it."""

    name: str
    url: str | None
    replace_with: str | None
    where: str

    __repr__ = redacted_repr("url")


def home(draft: PresetDraft) -> Path:
    """The directory of cargo's settings and its cache."""
    return draft.surroundings.expand(draft.surroundings.env.get("CARGO_HOME") or "~/.cargo")


def variable(name: str) -> str:
    """A registry's name as it is spelled in a variable."""
    return name.upper().replace("-", "_")


def read(draft: PresetDraft) -> tuple[tuple[CargoRegistry, ...], tuple[CargoSource, ...]]:
    """The registries and sources; a variable wins over a file."""
    where, config = _toml(draft, "config", "config.toml")
    secrets, credentials = _toml(draft, "credentials", "credentials.toml")
    tokens = _tables(credentials, "registries")
    env = draft.surroundings.env
    urls = {
        name: (str(table["index"]), where)
        for name, table in _tables(config, "registries").items()
        if isinstance(table.get("index"), str)
    }
    for key, value in env.items():
        found = _INDEX_VARIABLE.fullmatch(key)
        if found:
            name = next((name for name in urls if variable(name) == found[1]), found[1].lower())
            urls[name] = (value, key)

    def credential(name: str) -> FoundCredential | None:
        key = f"CARGO_REGISTRIES_{variable(name)}_TOKEN"
        if env.get(key):
            return _credential(env[key], key)
        return _credential(_text(tokens.get(name, {}), "token"), secrets)

    registries = tuple(
        CargoRegistry(name, url, place, credential(name)) for name, (url, place) in urls.items()
    )
    sources = tuple(
        CargoSource(name, _text(table, "registry"), _text(table, "replace-with"), where)
        for name, table in _tables(config, "source").items()
    )
    return registries, sources


def _credential(token: str | None, where: str) -> FoundCredential | None:
    try:
        return FoundCredential.raw(token).found_in(where) if token else None
    except Unparsable:
        return None


def _toml(draft: PresetDraft, *names: str) -> tuple[str, dict[str, Any]]:
    """The first of these files in cargo's home; cargo prefers the old name without suffix."""
    for path in (home(draft) / name for name in names):
        text = draft.read(path)
        shown = draft.surroundings.shown(path)
        if text is None:
            continue
        try:
            return shown, parse_toml(text)
        except (ValueError, RecursionError):
            draft.note(f"{shown} is not read: its syntax is off")
    return "", {}


def _tables(tree: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    found = tree.get(key)
    tables = found.items() if isinstance(found, dict) else ()
    return {name: table for name, table in tables if isinstance(table, dict)}


def _text(table: dict[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) else None
