"""Agent profiles: Keyhole's knowledge of each coding agent, read from one TOML file each.

`app` reads the files and passes their text to `parse_profile`. A profile says by which marks a
program is known to be the agent's, which service it needs, which of its settings come along into
the sandbox, and what makes its own sandbox step back. A profile grants nothing: the policy does.
"""

from __future__ import annotations

import enum
import re
import tomllib
from typing import Any

from msgspec import Struct, field

from keyhole.inject.quiet_refusals import QuietRefusal
from keyhole.inject.table_values import (
    Confidence,
    day_value,
    read_at,
    read_each,
    read_optional,
    refuse_unknown,
    table_value,
    text_value,
    variable_value,
)
from keyhole.model.errors import Unparsable
from keyhole.model.secret import SecretRef


class SettingsFormat(enum.StrEnum):
    """The language of a settings file."""

    JSON = "json"
    """Comments and commas before a bracket are accepted, as most agents do."""
    TOML = "toml"
    YAML = "yaml"
    """Of YAML only `name: value` lines at the top are read."""


class AgentAccess(Struct, frozen=True):
    """A way to the agent's provider: the service of the catalogue, and where its secret is."""

    service: str
    secret: SecretRef
    fix: str
    """The command by which a person makes that secret available."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables where the policy has this service."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Values for the first settings file, where the policy has this service."""


class FeatureSwitch(Struct, frozen=True):
    """A setting that follows a feature of the model: one value where the policy opens it, another
    where it does not."""

    key: str
    """Dotted."""
    feature: str
    on: Any
    off: Any


class AgentSettings(Struct, frozen=True):
    """A settings file: the keys that come along, and the values that Keyhole writes."""

    path: str
    """Below the home."""
    format: SettingsFormat
    keys: tuple[str, ...]
    """Dotted names of the values that are copied."""
    fixed: dict[str, Any]
    """Values that are written whatever the host's file has. `{project}` and `{directory}` in them
    stand for the directories of the policy and of the run."""
    switches: tuple[FeatureSwitch, ...] = ()
    """Settings by which the agent asks its model for no feature that would be refused."""


class ServerSettings(Struct, frozen=True):
    """Where an agent has its MCP servers."""

    path: str
    """One of its settings files, below the home."""
    keys: tuple[str, ...]
    """Dotted names of the tables; inside, all servers stand in the first."""
    reference: str
    """How its settings name a variable, with `NAME` for it; empty: in a list `env_vars`."""


class AgentProfile(Struct, frozen=True):
    """One agent."""

    name: str
    title: str
    sure: Confidence
    looked_at: str | None
    """The day on which it was really run; None if it was not, or the day is not known."""
    programs: tuple[str, ...]
    install: str
    marks: tuple[str, ...]
    """Parts of a path; a program whose real path has one of them is the agent's."""
    contents: tuple[str, ...]
    """Texts; a program without a mark in its path is the agent's if it contains one of them."""
    access: tuple[AgentAccess, ...]
    """The best first."""
    arguments: tuple[str, ...]
    """Words after the program's name."""
    env: tuple[tuple[str, str], ...]
    """Variables inside; the policy's own win over them."""
    unset: tuple[str, ...]
    """Variables with a placeholder that the agent does not want beside another."""
    settings: tuple[AgentSettings, ...]
    copies: tuple[str, ...]
    """Files and directories below the home that are copied: instructions, commands, skills."""
    quiet: tuple[str, ...]
    """Refusals that nobody needs to read, as `quiet_refusals.py` takes them."""
    notes: tuple[str, ...]
    trial: tuple[str, ...] = ()
    """Words by which it answers one question and ends, for `keyhole doctor --agents`."""
    servers: ServerSettings | None = None
    """Its MCP servers, of which those that the policy grants come along."""


_TOP_KEYS = frozenset(
    "title sure looked_at programs install marks contents access arguments env unset settings "
    "copies quiet notes trial servers".split()
)
_ACCESS_KEYS = frozenset("service secret fix env fixed".split())
_SETTINGS_KEYS = frozenset("file format keys fixed switches".split())
_SWITCH_KEYS = frozenset("key feature on off".split())
_SERVERS_KEYS = frozenset("file keys reference".split())

NEVER_COPIED = frozenset(
    "env environment header headers helper hook hooks mcp mcpservers secret secrets token tokens "
    "key keys apikey auth password passwords credential credentials command plugins".split()
)
"""Words in the name of a setting that may hold a credential, or name a program to run."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def parse_profile(name: str, text: str) -> AgentProfile:
    """Read one profile, or raise Unparsable with the place of the mistake."""
    table = read_at(name, tomllib.loads, text)
    refuse_unknown(name, table, _TOP_KEYS)
    marks = read_each(f"{name}.marks", text_value, table.get("marks", []))
    contents = read_each(f"{name}.contents", text_value, table.get("contents", []))
    if not marks and not contents:
        raise Unparsable(f"{name}: 'marks' or 'contents' tell the agent from others of its name")
    return AgentProfile(
        name=name,
        title=read_at(f"{name}.title", text_value, table.get("title")),
        sure=read_at(f"{name}.sure", Confidence, table.get("sure")),
        looked_at=read_optional(f"{name}.looked_at", day_value, table.get("looked_at")),
        programs=read_each(f"{name}.programs", _program, table.get("programs", [name])),
        install=read_at(f"{name}.install", text_value, table.get("install")),
        marks=marks,
        contents=contents,
        access=read_each(f"{name}.access", _access, table.get("access", [])),
        arguments=read_each(f"{name}.arguments", text_value, table.get("arguments", [])),
        env=_variables(f"{name}.env", table.get("env", {})),
        unset=read_each(f"{name}.unset", variable_value, table.get("unset", [])),
        settings=read_each(f"{name}.settings", _settings, table.get("settings", [])),
        copies=read_each(f"{name}.copies", _below_home, table.get("copies", [])),
        quiet=read_each(f"{name}.quiet", _quiet, table.get("quiet", [])),
        notes=read_each(f"{name}.notes", text_value, table.get("notes", [])),
        trial=read_each(f"{name}.trial", text_value, table.get("trial", [])),
        servers=read_optional(f"{name}.servers", _servers, table.get("servers")),
    )


def _variables(place: str, value: object) -> tuple[tuple[str, str], ...]:
    table = read_at(place, table_value, value)
    return tuple(
        (read_at(place, variable_value, key), read_at(f"{place}.{key}", text_value, text))
        for key, text in table.items()
    )


def _program(value: object) -> str:
    if "/" in (name := text_value(value)):
        raise Unparsable("the name of a program is expected, not its path")
    return name


def _access(value: object) -> AgentAccess:
    table = table_value(value)
    refuse_unknown("access", table, _ACCESS_KEYS)
    return AgentAccess(
        service=text_value(table.get("service")),
        secret=SecretRef.parse(text_value(table.get("secret"))),
        fix=text_value(table.get("fix")),
        env=_variables("env", table.get("env", {})),
        fixed=table_value(table.get("fixed", {})),
    )


def _settings(value: object) -> AgentSettings:
    table = table_value(value)
    refuse_unknown("settings", table, _SETTINGS_KEYS)
    return AgentSettings(
        path=_below_home(table.get("file")),
        format=SettingsFormat(text_value(table.get("format"))),
        keys=read_each("keys", _key, table.get("keys", [])),
        fixed=table_value(table.get("fixed", {})),
        switches=read_each("switches", _switch, table.get("switches", [])),
    )


def _switch(value: object) -> FeatureSwitch:
    table = table_value(value)
    refuse_unknown("switch", table, _SWITCH_KEYS)
    if missing := sorted(_SWITCH_KEYS - table.keys()):
        raise Unparsable(f"'{missing[0]}' is missing")
    key, feature = text_value(table["key"]), text_value(table["feature"])
    return FeatureSwitch(key, feature, table["on"], table["off"])


def _servers(value: object) -> ServerSettings:
    table = table_value(value)
    refuse_unknown("servers", table, _SERVERS_KEYS)
    reference = table.get("reference", "")
    if reference and "NAME" not in text_value(reference):
        raise Unparsable("'reference' has NAME in the place of a variable's name")
    return ServerSettings(
        _below_home(table.get("file")),
        read_each("keys", text_value, table.get("keys", [])),
        reference,
    )


def _key(value: object) -> str:
    # Attack: a key such as `env` or `apiKeyHelper` would carry a token, or a program to run.
    words = _WORD.findall(name := text_value(value))
    if any(word.lower() in NEVER_COPIED for word in words):
        raise Unparsable(f"'{name}' may hold a credential, so it is never copied")
    return name


def _below_home(value: object) -> str:
    path = text_value(value)
    if not path.startswith(".") or not all(part.strip(".") for part in path.split("/")):
        raise Unparsable("a hidden file below the home is expected, as in '.claude/CLAUDE.md'")
    return path


def _quiet(value: object) -> str:
    QuietRefusal.parse(text := text_value(value))
    return text
