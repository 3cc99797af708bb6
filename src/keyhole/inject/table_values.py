"""Values of the TOML files that ship with Keyhole, read with the place of each mistake.

Used by `catalogue.py` and `agent_profile.py`. A mistake raises Unparsable with its position, as in
`github.host[0].allow[2]`.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, TypeVar

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_DAY = re.compile(r"20[0-9]{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Confidence(enum.StrEnum):
    """How well a file's facts are known."""

    UNVERIFIED = "unverified"
    DOCUMENTED = "documented"
    TESTED = "tested"


def text_value(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise Unparsable("a text is missing")
    return value


def flag_value(value: object) -> bool:
    """A boolean: `git = "false"` would be true."""
    if not isinstance(value, bool):
        raise Unparsable("true or false is expected")
    return value


def table_value(value: object) -> dict[str, Any]:
    """A table."""
    if not isinstance(value, dict):
        raise Unparsable("a table is expected")
    return value


def list_value(value: object) -> list[object]:
    """A list: a text in place of one would be read letter by letter."""
    if not isinstance(value, list):
        raise Unparsable("a list is expected")
    return value


def day_value(value: object) -> str:
    """A day, as in `2026-06-30`."""
    if not _DAY.fullmatch(day := text_value(value)):
        raise Unparsable("a day is expected, as in '2026-06-30'")
    return day


def describe_knowledge(sure: Confidence, looked_at: str | None) -> str:
    """How well facts are known, and the day on which a client was really run."""
    return f"{sure}, looked at {looked_at}" if looked_at else f"{sure}, not looked at"


def variable_value(value: object) -> str:
    """The name of a variable."""
    if not _VARIABLE.fullmatch(name := text_value(value)):
        raise Unparsable("the name of a variable is expected")
    return name


def read_each(place: str, parse: Callable[[Any], T], values: object) -> tuple[T, ...]:
    """The items of a list, each by `parse`."""
    items = read_at(place, list_value, values)
    return tuple(read_at(f"{place}[{i}]", parse, value) for i, value in enumerate(items))


def read_optional(place: str, parse: Callable[[Any], T], value: object) -> T | None:
    """A value that may be missing."""
    return None if value is None else read_at(place, parse, value)


def read_at(place: str, parse: Callable[[Any], T], value: object) -> T:
    """A value by `parse`; a mistake in it is named with its place."""
    try:
        return parse(value)
    except ValueError as error:
        raise Unparsable(f"{place}: {error}") from error


def refuse_unknown(place: str, table: dict[str, Any], known: frozenset[str]) -> None:
    """Raise Unparsable for a key that is not known."""
    unknown = sorted(set(table) - known)
    if unknown:
        raise Unparsable(f"{place}: unknown key {unknown[0]!r}")
