"""The services catalogue: Keyhole's knowledge of each service, read from one TOML file each.

`app` reads the files and passes their text to `parse_template`. A mistake in a file raises with its
position: the files ship with Keyhole, and a test loads every one. How a host's credential is
written and what is allowed there are data, so that a service is added without code.
"""

from __future__ import annotations

import enum
import re
import tomllib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from keyhole.inject.injection import Injection, parse_injection
from keyhole.inject.model_api import JudgedPaths, ModelApis, parse_judged
from keyhole.inject.operations import OperationTable, parse_operations
from keyhole.inject.placeholder import TokenShape
from keyhole.inject.prices import PriceList, parse_price
from keyhole.inject.slots import Slot, parse_returned
from keyhole.inject.table_values import (
    Confidence,
    day_value,
    flag_value,
    read_at,
    read_each,
    read_optional,
    refuse_unknown,
    table_value,
    text_value,
    variable_value,
)
from keyhole.inject.token_usage import UsageFormat
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.https_url import HttpsUrl
from keyhole.model.repository import Forge
from keyhole.model.rule import AccessRule

T = TypeVar("T")


class ServiceKind(enum.StrEnum):
    """The kind of a service, for listings."""

    LLM = "llm"
    FORGE = "forge"
    REGISTRY = "registry"
    SAAS = "saas"


class HostTemplate(Struct, frozen=True):
    """The facts about some of a service's hosts. `example` is used when the policy names them."""

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
    """The cheapest request that succeeds only with an accepted credential."""
    probe_headers: tuple[tuple[str, str], ...] = ()
    usage: tuple[UsageFormat, ...] = ()
    """How its responses report their tokens."""
    returned: tuple[Slot, ...] = ()
    """Fields of its responses that reach the sandbox although they look like a session or a digest.
    So do cookies in `keep`."""
    bodies: tuple[AccessRule, ...] = ()
    """Requests that have a body although HTTP defines none for their method."""
    names: tuple[tuple[int, str], ...] = ()
    """Lines of the secret that are names, such as an account's id, and the text that clients see
    instead."""
    judged: tuple[JudgedPaths, ...] = ()
    """Requests whose bodies are judged; where there are some, other bodies are closed."""
    operations: tuple[OperationTable, ...] = ()
    """How operations are told apart that have the same method and path."""

    def knows(self, pattern: HostPattern) -> bool:
        """Whether a host that a policy names is one of the vendor's, not a server of the user's
        own.

        Capitals in `example` stand for each user's own part, as in `SITE.atlassian.net`.
        """
        if pattern in self.hosts:
            return True
        name = f"x.{pattern.host}" if pattern.subdomains else str(pattern.host)
        shape = _EACH_USERS.sub("[a-z0-9-]+", re.escape(self.example))
        return bool(_EACH_USERS.search(self.example)) and bool(re.fullmatch(shape, name))


class McpLogin(enum.StrEnum):
    """How a server of MCP knows who asks."""

    OAUTH = "oauth"
    """By `keyhole login`."""
    TOKEN = "token"  # noqa: S105 - not one
    """By a token that the person has made there."""
    NONE = "none"


class McpServer(Struct, frozen=True):
    """The facts about a server of MCP."""

    endpoint: HttpsUrl | None = None
    """Where clients send their messages; None: the policy names the host."""
    login: McpLogin = McpLogin.OAUTH
    reads: tuple[str, ...] = ()
    """Names of its tools that change nothing, as the vendor documents them; `*` is any text."""


class ServiceTemplate(Struct, frozen=True):
    """A catalogue entry. A policy's own host names replace those of the first of `hosts`."""

    name: str
    title: str
    kind: ServiceKind
    sure: Confidence
    looked_at: str | None
    """The day on which it was really run; None if it was not, or the day is not known."""
    notes: tuple[str, ...]
    env: tuple[str, ...]
    placeholder: TokenShape | None
    placeholders: tuple[tuple[str, TokenShape], ...]
    """Placeholder shapes of variables that hold a part of the credential with its own shape."""
    forge: Forge | None
    git_user: str | None
    hosts: tuple[HostTemplate, ...]
    mcp: McpServer | None = None
    """Set if its hosts are servers of MCP, whose messages are judged."""
    prices: PriceList = PriceList()
    """What its models cost; empty if that is not known, or if it is not paid by the token."""

    @property
    def needs_hosts(self) -> bool:
        """Whether each user has a host of their own there, which the policy must name."""
        return not self.hosts[0].hosts


Catalogue: TypeAlias = Mapping[str, ServiceTemplate]
"""Templates by name; the caller's mapping may read each file only when it is needed."""

_NO_APIS: ModelApis = MappingProxyType({})
_EACH_USERS = re.compile("[A-Z]+")
_TOP_KEYS = frozenset(
    "title kind sure looked_at notes env placeholder placeholders forge git_user mcp host "
    "prices extends".split()
)
_MCP_KEYS = frozenset(("endpoint", "login", "reads"))
_PRICE_LIST_KEYS = frozenset(("source", "day", "models"))
_HOST_KEYS = frozenset(
    "hosts example inject git strip keep merge allow deny api_read api_write encoded_slash "
    "ranges probe probe_headers usage returned bodies names judged operations".split()
)


def parse_template(
    name: str, text: str, apis: ModelApis = _NO_APIS, base: str = ""
) -> ServiceTemplate:
    """Read one catalogue file, or raise Unparsable with the place of the mistake. `apis` are those
    by which bodies are judged, `base` is the text of the file that this one `extends`."""
    table = read_at(name, tomllib.loads, text)
    refuse_unknown(name, table, _TOP_KEYS)
    hosts = read_each(f"{name}.host", table_value, table.get("host", []))
    if "extends" in table:
        inherited = read_at(f"{name}.extends", _inherited, base)
        hosts = tuple(inherited | host for host in hosts)
    if not hosts:
        raise Unparsable(f"{name}: no [[host]]")
    env = read_each(f"{name}.env", variable_value, table.get("env", []))
    if bool(env) is not ("placeholder" in table):
        raise Unparsable(f"{name}: 'env' and 'placeholder' come together")
    placeholders = read_at(f"{name}.placeholders", _shapes, table.get("placeholders", {}))
    if not {variable for variable, _ in placeholders} <= set(env):
        raise Unparsable(f"{name}: 'placeholders' gives shapes to variables of 'env'")
    return ServiceTemplate(
        name=name,
        title=read_at(f"{name}.title", text_value, table.get("title")),
        kind=read_at(f"{name}.kind", ServiceKind, table.get("kind")),
        sure=read_at(f"{name}.sure", Confidence, table.get("sure")),
        looked_at=read_optional(f"{name}.looked_at", day_value, table.get("looked_at")),
        notes=read_each(f"{name}.notes", text_value, table.get("notes", [])),
        env=env,
        placeholder=read_optional(f"{name}.placeholder", _shape, table.get("placeholder")),
        placeholders=placeholders,
        forge=read_optional(f"{name}.forge", Forge, table.get("forge")),
        git_user=read_optional(f"{name}.git_user", _user, table.get("git_user")),
        hosts=tuple(_host(f"{name}.host[{i}]", entry, apis) for i, entry in enumerate(hosts)),
        mcp=read_optional(f"{name}.mcp", _mcp, table.get("mcp")),
        prices=read_at(f"{name}.prices", _prices, table.get("prices", {})),
    )


def extended(text: str) -> str:
    """The name of the file that this one extends; empty if it stands alone."""
    return str(tomllib.loads(text).get("extends", "")) if "extends" in text else ""


def _inherited(base: str) -> dict[str, Any]:
    """What hosts do not say themselves: the facts of the first host of another file."""
    hosts = tomllib.loads(base).get("host")
    if not hosts:
        raise Unparsable("the name of another file is expected")
    return {key: value for key, value in hosts[0].items() if key != "example"}


def _mcp(value: object) -> McpServer:
    table = table_value(value)
    refuse_unknown("mcp", table, _MCP_KEYS)
    return McpServer(
        read_optional("endpoint", _endpoint, table.get("endpoint")),
        read_at("login", McpLogin, table.get("login", McpLogin.OAUTH)),
        read_each("reads", text_value, table.get("reads", [])),
    )


def _prices(value: object) -> PriceList:
    table = table_value(value)
    if not table:
        return PriceList()
    refuse_unknown("its table", table, _PRICE_LIST_KEYS)
    models = table_value(table.get("models")).items()
    return PriceList(
        tuple(parse_price(model, table_value(price)) for model, price in models),
        text_value(table.get("source")),
        day_value(table.get("day")),
    )


def _host(place: str, table: dict[str, Any], apis: ModelApis) -> HostTemplate:
    refuse_unknown(place, table, _HOST_KEYS)
    hosts = read_each(f"{place}.hosts", _pattern, table.get("hosts", []))
    if bool(hosts) is ("example" in table):
        raise Unparsable(f"{place}: either 'hosts', or the 'example' of a host the user names")
    inject = table.get("inject", [])
    inject = [inject] if isinstance(inject, dict) else inject
    probe = read_optional(f"{place}.probe", _probe, table.get("probe"))
    if not (inject if probe else "probe_headers" not in table):
        raise Unparsable(f"{place}: a 'probe' is for a host with 'inject', its headers for a probe")
    return HostTemplate(
        hosts=hosts,
        example=read_optional(f"{place}.example", text_value, table.get("example")) or "",
        inject=read_each(f"{place}.inject", _injection, inject),
        git=read_at(f"{place}.git", flag_value, table.get("git", False)),
        strip=read_each(f"{place}.strip", _slot, table.get("strip", [])),
        keep=read_each(f"{place}.keep", _slot, table.get("keep", [])),
        merge=read_at(f"{place}.merge", _merge, table.get("merge", {})),
        allow=read_each(f"{place}.allow", _rule, table.get("allow", [])),
        deny=read_each(f"{place}.deny", _rule, table.get("deny", [])),
        api_read=read_each(f"{place}.api_read", _rule, table.get("api_read", [])),
        api_write=read_each(f"{place}.api_write", _rule, table.get("api_write", [])),
        encoded_slash=read_at(
            f"{place}.encoded_slash", flag_value, table.get("encoded_slash", False)
        ),
        ranges=read_at(f"{place}.ranges", flag_value, table.get("ranges", False)),
        probe=probe,
        probe_headers=read_at(f"{place}.probe_headers", _merge, table.get("probe_headers", {})),
        usage=read_each(f"{place}.usage", UsageFormat, table.get("usage", [])),
        returned=read_each(f"{place}.returned", _returned, table.get("returned", [])),
        bodies=read_each(f"{place}.bodies", _body_rule, table.get("bodies", [])),
        names=read_at(f"{place}.names", _names, table.get("names", {})),
        judged=parse_judged(f"{place}.judged", table.get("judged", {}), apis),
        operations=parse_operations(f"{place}.operations", table.get("operations", [])),
    )


def _user(value: object) -> str:
    parse_injection({"basic_user": value})
    return str(value)


def _merge(value: object) -> tuple[tuple[str, str], ...]:
    return tuple((header, text_value(flag)) for header, flag in table_value(value).items())


def _names(value: object) -> tuple[tuple[int, str], ...]:
    found = table_value(value)
    if not found.keys() <= set("123456789"):
        raise Unparsable('a name is given by its line of the secret, as in { 2 = "0000" }')
    return tuple((int(line), text_value(shown)) for line, shown in found.items())


def _injection(value: object) -> Injection:
    return parse_injection(table_value(value))


def _probe(value: object) -> AccessRule:
    rule = AccessRule.parse(text_value(value))
    if rule.methods != {"GET", "HEAD"} or "*" in rule.text or "{" in rule.text:
        raise Unparsable("a probe is a GET of one path, as in 'GET /v1/models'")
    return rule


def _body_rule(value: object) -> AccessRule:
    rule = AccessRule.parse(text_value(value))
    if not all(word.endswith("+body") for word in rule.methods):
        raise Unparsable("a request with a body is named as in 'DELETE+body /v1/things/*'")
    return rule


def _written(parse: Callable[[str], T]) -> Callable[[object], T]:
    """A parser of texts, for a value that may not be one."""
    return lambda value: parse(text_value(value))


_shape, _slot = _written(TokenShape.parse), _written(Slot.parse)
_returned, _endpoint = _written(parse_returned), _written(HttpsUrl.parse)
_pattern, _rule = _written(HostPattern.parse), _written(AccessRule.parse)


def _shapes(value: object) -> tuple[tuple[str, TokenShape], ...]:
    return tuple((variable, _shape(shape)) for variable, shape in table_value(value).items())
