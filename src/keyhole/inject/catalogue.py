"""The services catalogue: what Keyhole knows of a service, read from one TOML file each.

`parse_template` is handed a file's text by whoever may read files; a mistake in a file raises with
its place, since the files are ours and a test loads every one. How a host's credential is written
and what is allowed there are data, so that a service is added without code.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from keyhole.inject.injection import Injection, parse_injection
from keyhole.inject.placeholder import Shape
from keyhole.inject.slots import Slot, parse_returned
from keyhole.inject.usage import Usage
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.repository import Forge
from keyhole.model.rule import AccessRule
from keyhole.model.value import dataclass

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
    ranges: bool
    probe: AccessRule | None = None
    """The cheapest request that only an accepted credential has answered well."""
    probe_headers: tuple[tuple[str, str], ...] = ()
    usage: tuple[Usage, ...] = ()
    """How its answers say how many tokens they took."""
    returned: tuple[Slot, ...] = ()
    """Fields of its answers that reach the sandbox although they look like a session or a digest.
    Cookies in `keep` do so as well."""
    bodies: tuple[AccessRule, ...] = ()
    """Which requests have a body although HTTP defines none for their method."""

    def knows(self, pattern: HostPattern) -> bool:
        """Whether a host that a policy names is one of the vendor's, not a server of one's own.

        Capitals in `example` stand for what each user has, as in `SITE.atlassian.net`.
        """
        if pattern in self.hosts:
            return True
        name = f"x.{pattern.host}" if pattern.subdomains else str(pattern.host)
        shape = _EACH_USERS.sub("[a-z0-9-]+", re.escape(self.example))
        return bool(_EACH_USERS.search(self.example)) and bool(re.fullmatch(shape, name))


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
    placeholders: tuple[tuple[str, Shape], ...]
    """Of variables whose part of the credential has a shape of its own."""
    forge: Forge | None
    git_user: str | None
    hosts: tuple[HostTemplate, ...]

    @property
    def needs_hosts(self) -> bool:
        """Whether each user has a host of their own there, which the policy must name."""
        return not self.hosts[0].hosts


Catalogue: TypeAlias = Mapping[str, Template]
"""Templates by name; the caller's mapping may read each file only when it is asked for."""

_EACH_USERS = re.compile("[A-Z]+")
_SINCE = re.compile(r"20[0-9]{2}-(?:0[1-9]|1[0-2])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOP_KEYS = frozenset(
    "title kind sure since notes env placeholder placeholders forge git_user host".split()
)
_HOST_KEYS = frozenset(
    "hosts example inject git strip keep merge allow deny api_read api_write encoded_slash "
    "ranges probe probe_headers usage returned bodies".split()
)


def parse_template(name: str, text: str) -> Template:
    """Read one catalogue file, or raise Unparsable with the place of the mistake."""
    table = _at(name, tomllib.loads, text)
    _refuse_unknown(name, table, _TOP_KEYS)
    hosts = _each(f"{name}.host", _table, table.get("host", []))
    if not hosts:
        raise Unparsable(f"{name}: no [[host]]")
    env = _each(f"{name}.env", _variable, table.get("env", []))
    if bool(env) is not ("placeholder" in table):
        raise Unparsable(f"{name}: 'env' and 'placeholder' come together")
    placeholders = _at(f"{name}.placeholders", _shapes, table.get("placeholders", {}))
    if not {variable for variable, _ in placeholders} <= set(env):
        raise Unparsable(f"{name}: 'placeholders' gives shapes to variables of 'env'")
    return Template(
        name=name,
        title=_at(f"{name}.title", _text, table.get("title")),
        kind=_at(f"{name}.kind", Kind, table.get("kind")),
        sure=_at(f"{name}.sure", Sure, table.get("sure")),
        since=_at(f"{name}.since", _month, table.get("since")),
        notes=_each(f"{name}.notes", _text, table.get("notes", [])),
        env=env,
        placeholder=_maybe(f"{name}.placeholder", _shape, table.get("placeholder")),
        placeholders=placeholders,
        forge=_maybe(f"{name}.forge", Forge, table.get("forge")),
        git_user=_maybe(f"{name}.git_user", _user, table.get("git_user")),
        hosts=tuple(_host(f"{name}.host[{i}]", entry) for i, entry in enumerate(hosts)),
    )


def _host(place: str, table: dict[str, Any]) -> HostTemplate:
    _refuse_unknown(place, table, _HOST_KEYS)
    hosts = _each(f"{place}.hosts", _pattern, table.get("hosts", []))
    if bool(hosts) is ("example" in table):
        raise Unparsable(f"{place}: either 'hosts', or the 'example' of a host the user names")
    inject = table.get("inject", [])
    inject = [inject] if isinstance(inject, dict) else inject
    probe = _maybe(f"{place}.probe", _probe, table.get("probe"))
    if not (inject if probe else "probe_headers" not in table):
        raise Unparsable(f"{place}: a 'probe' is for a host with 'inject', its headers for a probe")
    return HostTemplate(
        hosts=hosts,
        example=_maybe(f"{place}.example", _text, table.get("example")) or "",
        inject=_each(f"{place}.inject", _injection, inject),
        git=_at(f"{place}.git", _flag, table.get("git", False)),
        strip=_each(f"{place}.strip", _slot, table.get("strip", [])),
        keep=_each(f"{place}.keep", _slot, table.get("keep", [])),
        merge=_at(f"{place}.merge", _merge, table.get("merge", {})),
        allow=_each(f"{place}.allow", _rule, table.get("allow", [])),
        deny=_each(f"{place}.deny", _rule, table.get("deny", [])),
        api_read=_each(f"{place}.api_read", _rule, table.get("api_read", [])),
        api_write=_each(f"{place}.api_write", _rule, table.get("api_write", [])),
        encoded_slash=_at(f"{place}.encoded_slash", _flag, table.get("encoded_slash", False)),
        ranges=_at(f"{place}.ranges", _flag, table.get("ranges", False)),
        probe=probe,
        probe_headers=_at(f"{place}.probe_headers", _merge, table.get("probe_headers", {})),
        usage=_each(f"{place}.usage", Usage, table.get("usage", [])),
        returned=_each(f"{place}.returned", _returned, table.get("returned", [])),
        bodies=_each(f"{place}.bodies", _body_rule, table.get("bodies", [])),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Unparsable("a text is missing")
    return value


def _flag(value: object) -> bool:
    # `git = "false"` would be true.
    if not isinstance(value, bool):
        raise Unparsable("true or false is expected")
    return value


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Unparsable("a table is expected")
    return value


def _list(value: object) -> list[object]:
    # A text in place of a list would be read letter by letter.
    if not isinstance(value, list):
        raise Unparsable("a list is expected")
    return value


def _month(value: object) -> str:
    if not _SINCE.fullmatch(month := _text(value)):
        raise Unparsable("a month is expected, as in '2026-06'")
    return month


def _variable(value: object) -> str:
    if not _VARIABLE.fullmatch(name := _text(value)):
        raise Unparsable("the name of a variable is expected")
    return name


def _user(value: object) -> str:
    parse_injection({"basic_user": value})
    return str(value)


def _merge(value: object) -> tuple[tuple[str, str], ...]:
    return tuple((header, _text(flag)) for header, flag in _table(value).items())


def _injection(value: object) -> Injection:
    return parse_injection(_table(value))


def _probe(value: object) -> AccessRule:
    rule = AccessRule.parse(_text(value))
    if rule.methods != {"GET", "HEAD"} or "*" in rule.text or "{" in rule.text:
        raise Unparsable("a probe is a GET of one path, as in 'GET /v1/models'")
    return rule


def _body_rule(value: object) -> AccessRule:
    rule = AccessRule.parse(_text(value))
    if not all(word.endswith("+body") for word in rule.methods):
        raise Unparsable("a request with a body is named as in 'DELETE+body /v1/things/*'")
    return rule


def _written(parse: Callable[[str], T]) -> Callable[[object], T]:
    """A parser of texts, for a value that may be none."""
    return lambda value: parse(_text(value))


_shape, _slot = _written(Shape.parse), _written(Slot.parse)
_returned = _written(parse_returned)
_pattern, _rule = _written(HostPattern.parse), _written(AccessRule.parse)


def _shapes(value: object) -> tuple[tuple[str, Shape], ...]:
    return tuple((variable, _shape(shape)) for variable, shape in _table(value).items())


def _each(place: str, parse: Callable[[Any], T], values: object) -> tuple[T, ...]:
    items = _at(place, _list, values)
    return tuple(_at(f"{place}[{i}]", parse, value) for i, value in enumerate(items))


def _maybe(place: str, parse: Callable[[Any], T], value: object) -> T | None:
    return None if value is None else _at(place, parse, value)


def _at(place: str, parse: Callable[[Any], T], value: object) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise Unparsable(f"{place}: {error}") from error


def _refuse_unknown(place: str, table: dict[str, Any], known: frozenset[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise Unparsable(f"{place}: unknown key {unknown[0]!r}")
