"""What the requests of a model's API may ask the provider to do, as data: one TOML file each.

A provider acts by itself where a body tells it to: it searches the web, fetches a URL, calls a
remote MCP server, runs code. Each file in `model_apis/` says where in a body that stands, and what
the feature is called that opens it. What a file does not know is closed, and so has a word of its
own (`tool:NAME`), so that a person can open it before the file knows it (I3).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct, structs

from keyhole.inject.table_values import (
    flag_value,
    list_value,
    read_at,
    read_each,
    refuse_unknown,
    table_value,
    text_value,
)
from keyhole.model.errors import Unparsable
from keyhole.model.rule import AccessRule

PLAIN = "plain"
"""The name for bodies that ask for nothing: they are not read."""

MEMBER = "member"

ANY_VALUE = "*"

UNMETERED = "unmetered"
"""The feature that opens, under a budget of tokens or money, what is billed by other things."""

_FEATURE = re.compile(r"[a-z][a-z0-9-]{1,31}")
_PLACE = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]*(?:\[\*\])*(?:\.[A-Za-z][A-Za-z0-9_-]*(?:\[\*\])*)*(?:\.\*\*)?"
)
_RULE_KEYS = frozenset(
    "at harmless features otherwise kind members missing excused plain written".split()
)
_TOP_KEYS = frozenset(
    "title like under model tokens tokens_written tokens_first answers prompts unbounded protobuf"
    " unmetered unread members fields rule".split()
)

Patterns: TypeAlias = tuple[str, ...]
"""Values; `*` stands for any characters."""


class BodyRule(Struct, frozen=True):
    """What the values at one place of a body ask for."""

    at: tuple[str, ...]
    """Names that lead there; lists are gone through. Empty: the body itself. `**` at the end: every
    place within, at any depth, that no other rule names."""
    kind: str
    """The kind of a value that is not known: `tool` is opened by `tool:NAME`."""
    harmless: Patterns = ()
    features: tuple[tuple[str, Patterns], ...] = ()
    """Features, and the values that ask for them."""
    otherwise: str = ""
    """The feature that every other value asks for; empty: it is not known."""
    members: bool = False
    """Whether the values are the names of an object's members."""
    missing: str = ""
    """The feature that is asked for where nothing stands there."""
    excused: tuple[tuple[str, str, str], ...] = ()
    """Features, each with a member of the same object and the member's value that makes the feature
    harmless."""
    plain: bool = False
    """Whether all that stands there is the conversation's own text, so that `**` ends there."""
    written: str = ""
    """The JSON value that is written where nothing stands there, unless `missing` is open."""

    @property
    def is_open(self) -> bool:
        """Whether every value is harmless."""
        return self.harmless == (ANY_VALUE,) and not self.features

    @property
    def words(self) -> frozenset[str]:
        """The features that it knows."""
        named = {name for name, _ in self.features} | {self.otherwise, self.missing}
        return frozenset(named - {""})


class ModelApi(Struct, frozen=True):
    """One API."""

    name: str
    title: str
    rules: tuple[BodyRule, ...] = ()
    fields: tuple[tuple[str, BodyRule], ...] = ()
    """Fields of the head that name features, separated by commas."""
    model: tuple[tuple[str, ...], ...] = ()
    """Where a body names a model."""
    tokens: tuple[tuple[str, ...], ...] = ()
    """Where a body says how long the answer may be."""
    tokens_written: bool = False
    """Whether the first of `tokens` can be written where a body says nothing."""
    tokens_first: bool = False
    """Whether some servers ignore all but the first of `tokens`, so that it must be there."""
    answers: tuple[tuple[str, ...], ...] = ()
    """Where a body says how many answers it wants."""
    prompts: tuple[tuple[str, ...], ...] = ()
    """Where a list has a text to answer in each of its items."""
    unbounded: bool = False
    """Whether no message bounds the answers, because the provider begins them by itself."""
    protobuf: bool = False
    """Whether the provider takes `max_tokens` for `maxTokens`, as protobuf's JSON does."""

    unmetered: bool = False
    """Whether it is billed by images, minutes or pages, of which answers report no tokens."""
    unread: bool = False
    """Whether its bodies ask for nothing, and so are not read."""

    @property
    def needed_tokens(self) -> tuple[tuple[str, ...], ...]:
        """The places of which one must say a length."""
        return self.tokens[:1] if self.tokens_first else self.tokens

    def is_spelling(self, name: str, known: str) -> bool:
        """Whether the provider takes a member's name for one that the file knows."""
        return name == known or (self.protobuf and _camel_case(name) == known)

    @property
    def features(self) -> frozenset[str]:
        """The features that it knows."""
        every = (*self.rules, *(rule for _, rule in self.fields))
        named = {word for rule in every for word in rule.words}
        return frozenset(named | {UNMETERED} if self.unmetered else named)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of what it may not know."""
        return frozenset(rule.kind for rule in (*self.rules, *(rule for _, rule in self.fields)))


class JudgedPaths(Struct, frozen=True):
    """Requests of a host whose bodies are judged as this API says; None: they ask for nothing."""

    api: ModelApi | None
    rules: tuple[AccessRule, ...]


ModelApis: TypeAlias = Mapping[str, ModelApi]
"""APIs by name; the caller's mapping may read each file when it is needed."""


def parse_judged(place: str, value: object, apis: ModelApis) -> tuple[JudgedPaths, ...]:
    """Read which requests of a host are judged by which API."""
    table = read_at(place, table_value, value)
    found = []
    for name, rules in table.items():
        if name != PLAIN and name not in apis:
            raise Unparsable(f"{place}: there is no API {name!r}")
        parsed = read_each(f"{place}.{name}", _access_rule, rules)
        found.append(JudgedPaths(None if name == PLAIN else apis[name], parsed))
    return tuple(found)


def _access_rule(value: object) -> AccessRule:
    return AccessRule.parse(text_value(value))


def parse_model_api(name: str, text: str, others: ModelApis) -> ModelApi:
    """Read one file, or raise Unparsable with the place of the mistake. `others` has the one that
    it is like."""
    table = read_at(name, tomllib.loads, text)
    refuse_unknown(name, table, _TOP_KEYS)
    base = others[table["like"]] if "like" in table else ModelApi(name, "")
    if "under" in table:
        base = _within(read_at(f"{name}.under", _place, table["under"]), base)
    members = read_each(f"{name}.members", text_value, table.get("members", []))
    rules = tuple(
        _rule(f"{name}.rule[{i}]", entry, MEMBER)
        for i, entry in enumerate(read_at(f"{name}.rule", list_value, table.get("rule", [])))
    )
    return ModelApi(
        name=name,
        title=read_at(f"{name}.title", text_value, table.get("title")),
        rules=_merge(base.rules, rules, members),
        fields=(*base.fields, *_fields(f"{name}.fields", table.get("fields", {}))),
        model=_places(name, "model", table, base.model),
        tokens=_places(name, "tokens", table, base.tokens),
        tokens_written=read_at(
            f"{name}.tokens_written", flag_value, table.get("tokens_written", base.tokens_written)
        ),
        tokens_first=read_at(f"{name}.tokens_first", flag_value, table.get("tokens_first", False)),
        answers=_places(name, "answers", table, base.answers),
        prompts=_places(name, "prompts", table, base.prompts),
        unbounded=read_at(f"{name}.unbounded", flag_value, table.get("unbounded", False)),
        protobuf=read_at(f"{name}.protobuf", flag_value, table.get("protobuf", base.protobuf)),
        unmetered=read_at(f"{name}.unmetered", flag_value, table.get("unmetered", False)),
        unread=read_at(f"{name}.unread", flag_value, table.get("unread", False)),
    )


def _within(under: tuple[str, ...], api: ModelApi) -> ModelApi:
    """The same API, one object deeper in a body."""
    return structs.replace(
        api,
        rules=tuple(structs.replace(rule, at=(*under, *rule.at)) for rule in api.rules),
        model=tuple((*under, *place) for place in api.model),
        tokens=tuple((*under, *place) for place in api.tokens),
        answers=tuple((*under, *place) for place in api.answers),
        prompts=tuple((*under, *place) for place in api.prompts),
    )


def _merge(
    base: tuple[BodyRule, ...], rules: tuple[BodyRule, ...], members: Patterns
) -> tuple[BodyRule, ...]:
    """The rules of another API, where these do not speak of the same place; and the members of the
    body, of both."""
    known = tuple(name for rule in base if not rule.at for name in rule.harmless)
    own = {(rule.at, rule.members) for rule in rules}
    kept = tuple(rule for rule in base if rule.at and (rule.at, rule.members) not in own)
    named = tuple(dict.fromkeys((*known, *members, *(rule.at[0] for rule in (*kept, *rules)))))
    return (BodyRule((), MEMBER, named, members=True), *kept, *rules)


def _places(
    name: str, key: str, table: dict[str, Any], base: tuple[tuple[str, ...], ...]
) -> tuple[tuple[str, ...], ...]:
    return read_each(f"{name}.{key}", _place, table[key]) if key in table else base


def _fields(place: str, value: object) -> tuple[tuple[str, BodyRule], ...]:
    table = read_at(place, table_value, value)
    return tuple(
        (field.lower(), _rule(f"{place}.{field}", {"at": "value", **entry}, "beta"))
        for field, entry in table.items()
    )


def _rule(place: str, value: object, kind: str) -> BodyRule:
    table = read_at(place, table_value, value)
    refuse_unknown(place, table, _RULE_KEYS)
    features = read_at(f"{place}.features", table_value, table.get("features", {}))
    return BodyRule(
        at=read_at(f"{place}.at", _place, table.get("at")),
        kind=read_at(f"{place}.kind", _feature, table.get("kind", kind)),
        harmless=read_each(f"{place}.harmless", text_value, table.get("harmless", [])),
        features=tuple(
            (
                read_at(f"{place}.features", _feature, word),
                read_each(f"{place}.features.{word}", text_value, values),
            )
            for word, values in features.items()
        ),
        otherwise=_optional(place, "otherwise", table),
        members=read_at(f"{place}.members", flag_value, table.get("members", False)),
        missing=_optional(place, "missing", table),
        excused=_excused(f"{place}.excused", table.get("excused", {})),
        plain=read_at(f"{place}.plain", flag_value, table.get("plain", False)),
        written=read_at(f"{place}.written", text_value, table["written"])
        if "written" in table
        else "",
    )


def _excused(place: str, value: object) -> tuple[tuple[str, str, str], ...]:
    table = read_at(place, table_value, value)
    return tuple(
        (read_at(place, _feature, word), member, read_at(place, text_value, text))
        for word, members in table.items()
        for member, text in read_at(f"{place}.{word}", table_value, members).items()
    )


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _optional(place: str, key: str, table: dict[str, Any]) -> str:
    return read_at(f"{place}.{key}", _feature, table[key]) if key in table else ""


def _feature(value: object) -> str:
    if not _FEATURE.fullmatch(word := text_value(value)):
        raise Unparsable("a feature is a word in lower case, as in 'web-search'")
    return word


def _place(value: object) -> tuple[str, ...]:
    if not _PLACE.fullmatch(place := text_value(value)):
        raise Unparsable("a place is written as in 'tools[*].type'")
    return tuple(place.replace("[*]", "").split("."))
