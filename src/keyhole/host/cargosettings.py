"""What cargo's own files and variables say: registries, sources that replace others, tokens.

Called by `cargo`. Only the user's cargo home is read; a project's .cargo/config.toml is the
project's.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

from keyhole.host.credential import Credential
from keyhole.model.errors import Unparsable
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.draft import Draft

_INDEX_VARIABLE = re.compile(r"CARGO_REGISTRIES_([A-Z0-9_]+)_INDEX")


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that the user named; its URL as found may hold a password."""

    name: str
    url: str = field(repr=False)
    where: str
    credential: Credential | None


@dataclass(frozen=True, slots=True)
class Source:
    """A source: where it is, and by which other source it is replaced."""

    name: str
    url: str | None = field(repr=False)
    replace_with: str | None
    where: str


def home(draft: Draft) -> Path:
    """Where cargo keeps its settings and its cache."""
    return draft.surroundings.expand(draft.surroundings.env.get("CARGO_HOME") or "~/.cargo")


def variable(name: str) -> str:
    """A registry's name as it is spelled in a variable."""
    return name.upper().replace("-", "_")


def read(draft: Draft) -> tuple[tuple[Registry, ...], tuple[Source, ...]]:
    """The registries and sources; a variable is stronger than a file."""
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

    def credential(name: str) -> Credential | None:
        key = f"CARGO_REGISTRIES_{variable(name)}_TOKEN"
        if env.get(key):
            return _credential(env[key], key)
        return _credential(_text(tokens.get(name, {}), "token"), secrets)

    registries = tuple(
        Registry(name, url, place, credential(name)) for name, (url, place) in urls.items()
    )
    sources = tuple(
        Source(name, _text(table, "registry"), _text(table, "replace-with"), where)
        for name, table in _tables(config, "source").items()
    )
    return registries, sources


def _credential(token: str | None, where: str) -> Credential | None:
    try:
        return Credential.raw(token).found_in(where) if token else None
    except Unparsable:
        return None


def _toml(draft: Draft, *names: str) -> tuple[str, dict[str, Any]]:
    """The first of these files in cargo's home; cargo prefers the old name without suffix."""
    for path in (home(draft) / name for name in names):
        text = draft.read(path)
        shown = draft.surroundings.shown(path)
        if text is None:
            continue
        try:
            return shown, tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            draft.note(f"{shown} is not read: its syntax is off")
    return "", {}


def _tables(tree: dict[str, Any], key: str) -> dict[str, dict[str, Any]]:
    found = tree.get(key)
    tables = found.items() if isinstance(found, dict) else ()
    return {name: table for name, table in tables if isinstance(table, dict)}


def _text(table: dict[str, Any], key: str) -> str | None:
    value = table.get(key)
    return value if isinstance(value, str) else None
