"""The services catalogue: what Keyhole knows of a service, read from one TOML file each.

`parse_template` is handed a file's text by whoever may read files; a mistake in a file raises with
its place, since the files are ours and a test loads every one. How a host's credential is written
and what is allowed there are data, so that a service is added without code.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from keyhole.inject.injection import Injection, parse_injection
from keyhole.inject.placeholder import Shape
from keyhole.inject.slots import Slot
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.repository import Forge
from keyhole.model.rule import AccessRule

T = TypeVar("T")


class Kind(enum.StrEnum):
    """What a service is, for listing."""

    LLM = "llm"
    FORGE = "forge"
    REGISTRY = "registry"
    SAAS = "saas"


class Sure(enum.StrEnum):
    """How well a file's facts are known."""

    UNVERIFIED = "unverified"
    DOCUMENTED = "documented"
    TESTED = "tested"


@dataclass(frozen=True, slots=True)
class HostTemplate:
    """What holds for some of a service's hosts. `example` stands in when the policy names them."""

    hosts: tuple[HostPattern, ...]
    example: str
    inject: tuple[Injection, ...]
    git: bool
    strip: tuple[Slot, ...]
    keep: tuple[Slot, ...]
    merge: tuple[tuple[str, str], ...]
    allow: tuple[AccessRule, ...]
    deny: tuple[AccessRule, ...]
    api_read: tuple[AccessRule, ...]
    api_write: tuple[AccessRule, ...]
    encoded_slash: bool


@dataclass(frozen=True, slots=True)
class Template:
    """A catalogue entry. The first of `hosts` takes the names that a policy gives instead."""

    name: str
    title: str
    kind: Kind
    sure: Sure
    since: str
    notes: tuple[str, ...]
    env: tuple[str, ...]
    placeholder: Shape | None
    forge: Forge | None
    git_user: str | None
    hosts: tuple[HostTemplate, ...]

    @property
    def needs_hosts(self) -> bool:
        """Whether each user has a host of their own there, which the policy must name."""
        return not self.hosts[0].hosts


Catalogue: TypeAlias = Mapping[str, Template]
"""Templates by name; the caller's mapping may read each file only when it is asked for."""

_SINCE = re.compile(r"20[0-9]{2}-(?:0[1-9]|1[0-2])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOP_KEYS = frozenset("title kind sure since notes env placeholder forge git_user host".split())
_HOST_KEYS = frozenset(
    "hosts example inject git strip keep merge allow deny api_read api_write encoded_slash".split()
)


def parse_template(name: str, text: str) -> Template:
    """Read one catalogue file, or raise Unparsable with the place of the mistake."""
    table = tomllib.loads(text)
    _refuse_unknown(name, table, _TOP_KEYS)
    hosts = table.get("host", [])
    if not hosts:
        raise Unparsable(f"{name}: no [[host]]")
    shape = table.get("placeholder")
    env = tuple(table.get("env", ()))
    if bool(env) is not bool(shape):
        raise Unparsable(f"{name}: 'env' and 'placeholder' come together")
    if not all(_VARIABLE.fullmatch(v) for v in env):
        raise Unparsable(f"{name}: 'env' holds names of variables")
    if not _SINCE.fullmatch(table.get("since", "")):
        raise Unparsable(f"{name}: 'since' is a month, as in '2026-06'")
    return Template(
        name=name,
        title=_at(f"{name}.title", _text, table.get("title")),
        kind=_at(f"{name}.kind", Kind, table.get("kind")),
        sure=_at(f"{name}.sure", Sure, table.get("sure")),
        since=table["since"],
        notes=tuple(table.get("notes", ())),
        env=env,
        placeholder=_at(f"{name}.placeholder", Shape.parse, shape) if shape else None,
        forge=_at(f"{name}.forge", Forge, table["forge"]) if "forge" in table else None,
        git_user=table.get("git_user"),
        hosts=tuple(_host(f"{name}.host[{i}]", entry) for i, entry in enumerate(hosts)),
    )


def _host(place: str, table: dict[str, Any]) -> HostTemplate:
    _refuse_unknown(place, table, _HOST_KEYS)
    hosts = _each(f"{place}.hosts", HostPattern.parse, table.get("hosts", ()))
    if bool(hosts) is ("example" in table):
        raise Unparsable(f"{place}: either 'hosts', or the 'example' of a host the user names")
    inject = table.get("inject", [])
    inject = [inject] if isinstance(inject, dict) else inject
    return HostTemplate(
        hosts=hosts,
        example=table.get("example", ""),
        inject=_each(f"{place}.inject", parse_injection, inject),
        git=table.get("git", False),
        strip=_each(f"{place}.strip", Slot.parse, table.get("strip", ())),
        keep=_each(f"{place}.keep", Slot.parse, table.get("keep", ())),
        merge=tuple(table.get("merge", {}).items()),
        allow=_each(f"{place}.allow", AccessRule.parse, table.get("allow", ())),
        deny=_each(f"{place}.deny", AccessRule.parse, table.get("deny", ())),
        api_read=_each(f"{place}.api_read", AccessRule.parse, table.get("api_read", ())),
        api_write=_each(f"{place}.api_write", AccessRule.parse, table.get("api_write", ())),
        encoded_slash=table.get("encoded_slash", False),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Unparsable("a text is missing")
    return value


def _each(place: str, parse: Callable[[Any], T], values: Iterable[object]) -> tuple[T, ...]:
    return tuple(_at(f"{place}[{i}]", parse, value) for i, value in enumerate(values))


def _at(place: str, parse: Callable[[Any], T], value: object) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise Unparsable(f"{place}: {error}") from error


def _refuse_unknown(place: str, table: dict[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise Unparsable(f"{place}: unknown key {unknown[0]!r}")
