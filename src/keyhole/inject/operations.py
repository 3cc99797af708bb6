"""Operations of a service that a method and a path do not tell apart, as data of the catalogue.

A request may name its operation (`Action=DeleteQueue`, `X-Amz-Target`), or carry a mark that makes
it another one: an upload with `x-amz-copy-source` reads any bucket, one with `?acl` opens an object
to the world. A table in a catalogue file says where the name stands, which marks there are, and by
which word a policy opens each. Where a list of harmless names is given, every other name is closed,
too (I3).
"""

from __future__ import annotations

import enum
import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from keyhole.inject.table_values import (
    flag_value,
    read_at,
    read_each,
    refuse_unknown,
    table_value,
    text_value,
)
from keyhole.model.errors import Unparsable
from keyhole.model.rule import AccessRule

HARMLESS = "harmless"
WATCHED = "watched"

_KEYS = frozenset("on named required open guarded media query header field".split())
_WORD = re.compile(r"[a-z][a-z0-9-]{1,31}")
_NAMED = re.compile(r"(query|form|header|path|graphql):([A-Za-z0-9-]+)")


class NamePlace(enum.StrEnum):
    """Where a request names its operation."""

    QUERY = "query"
    FORM = "form"
    HEADER = "header"
    """The part of its value behind the last dot."""
    PATH = "path"
    """The segment that follows one of this name."""
    GRAPHQL = "graphql"
    """The fields of a mutation, in a JSON body's member of this name."""


class MarkPlace(enum.StrEnum):
    """Where a request carries a mark."""

    QUERY = "query"
    HEADER = "header"
    FIELD = "field"
    """A field of a form, or a member of a JSON body."""


class OperationMark(Struct, frozen=True):
    """Names that make a request another operation."""

    word: str
    """The word that opens it."""
    names: tuple[tuple[str, str], ...]
    """Patterns of names, and of their values; an empty one: any value."""


class MarkedPart(Struct, frozen=True):
    """One part of a request, and the marks that it may carry."""

    place: MarkPlace
    marks: tuple[OperationMark, ...]
    harmless: tuple[str, ...] | None = None
    """Patterns of names that mean nothing; None: all that are no marks."""
    watched: tuple[str, ...] = ("*",)
    """Patterns of the names that are closed unless they are known."""


class OperationTable(Struct, frozen=True):
    """How operations are told apart in some requests of a host."""

    on: tuple[AccessRule, ...]
    """The requests that it speaks of. The first table of a host that speaks of one is used."""
    named: tuple[tuple[NamePlace, str], ...] = ()
    """Where an operation's name may stand, of which one must be used alone."""
    required: bool = False
    """Whether a request that names none is refused."""
    open: tuple[str, ...] = ()
    """Patterns of operations that are open without a word of the policy."""
    guarded: tuple[str, ...] = ()
    """Patterns of operations that only a word inside the pattern opens: no `*` and no `Get*`. They
    hold for all tables of a host."""
    media: tuple[str, ...] = ()
    """Patterns of the types of bodies that are not read, because they decide nothing."""
    parts: tuple[MarkedPart, ...] = ()

    @property
    def words(self) -> frozenset[str]:
        """The words that open its marks."""
        return frozenset(mark.word for part in self.parts for mark in part.marks)

    @property
    def kinds(self) -> frozenset[str]:
        """The beginnings of words that open what is not known, as in `query:NAME`."""
        return frozenset(part.place.value for part in self.parts if part.harmless is not None)

    @property
    def reads_fields(self) -> bool:
        """Whether it looks at the fields of a form or at the members of a JSON body."""
        return any(part.place is MarkPlace.FIELD for part in self.parts)

    @property
    def reads_forms(self) -> bool:
        """Whether it looks at the fields of a form."""
        return self.reads_fields or any(place is NamePlace.FORM for place, _ in self.named)

    @property
    def reads_json(self) -> bool:
        """Whether it looks at the members of a JSON body."""
        return self.reads_fields or any(place is NamePlace.GRAPHQL for place, _ in self.named)


def parse_operations(place: str, value: object) -> tuple[OperationTable, ...]:
    """Read the tables of one host, or raise Unparsable with the place of the mistake."""
    tables = read_each(place, table_value, value)
    found = [_table(f"{place}[{i}]", table) for i, table in enumerate(tables)]
    guarded = tuple(pattern for table in found for pattern in table.guarded)
    return tuple(replace(table, guarded=guarded) for table in found)


def _table(place: str, table: dict[str, Any]) -> OperationTable:
    refuse_unknown(place, table, _KEYS)
    found = OperationTable(
        on=read_each(f"{place}.on", _rule, table.get("on", [])),
        named=read_each(f"{place}.named", _named, table.get("named", [])),
        required=read_at(f"{place}.required", flag_value, table.get("required", False)),
        open=read_each(f"{place}.open", text_value, table.get("open", [])),
        guarded=read_each(f"{place}.guarded", text_value, table.get("guarded", [])),
        media=read_each(f"{place}.media", text_value, table.get("media", [])),
        parts=tuple(
            _part(f"{place}.{each}", each, table[each]) for each in MarkPlace if each in table
        ),
    )
    if not found.on or not (found.named or found.parts):
        raise Unparsable(f"{place}: 'on' says which requests, 'named' or a part what to look at")
    return found


def _part(place: str, kind: MarkPlace, value: object) -> MarkedPart:
    table = read_at(place, table_value, value)
    marks = tuple(
        OperationMark(read_at(place, _word, word), read_each(f"{place}.{word}", _name, table[word]))
        for word in table
        if word not in (HARMLESS, WATCHED)
    )
    harmless = read_each(f"{place}.{HARMLESS}", text_value, table.get(HARMLESS, []))
    watched = read_each(f"{place}.{WATCHED}", text_value, table.get(WATCHED, ["*"]))
    return MarkedPart(kind, marks, harmless if HARMLESS in table else None, watched)


def _rule(value: object) -> AccessRule:
    return AccessRule.parse(text_value(value))


def _named(value: object) -> tuple[NamePlace, str]:
    found = _NAMED.fullmatch(text_value(value))
    if found is None:
        raise Unparsable("a place is written as in 'query:Action'")
    return NamePlace(found[1]), found[2]


def _name(value: object) -> tuple[str, str]:
    name, _, pattern = text_value(value).partition("=")
    return name, pattern


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise Unparsable("an operation is a word in lower case, as in 'copy'")
    return value
