"""Shapes of JSON values: what may be sent, what may be answered, and the JSON Schema of both.

`table.py` builds requests and answers from these. A shape reads what JSON had into a value, or
refuses it; an answer is checked by the same shape before it leaves, so that nothing travels that
the published schema does not name. Nothing of a refused value is repeated in the refusal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from keyhole.model.errors import Unparsable
from keyhole.model.value import dataclass, field_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Schema = dict[str, Any]


class Misshapen(Exception):
    """A value that is not what its shape wants. `why` has no byte of the value in it."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Shape(Protocol):
    """How one value looks."""

    def read(self, value: object, where: str) -> Any:  # noqa: ANN401 - each shape has its own
        """What JSON had, as a value of ours; `where` names it in a refusal."""

    def write(self, value: Any, where: str) -> object:  # noqa: ANN401
        """A value of ours for JSON; the inverse of `read`."""

    def schema(self) -> Schema:
        """The same in JSON Schema (2020-12, as OpenAPI 3.1 has it)."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that a pattern matches whole. The pattern bounds its alphabet."""

    pattern: str
    most: int
    words: str
    """What it is, for the refusal."""

    def read(self, value: object, where: str) -> str:
        """A lone surrogate would break whoever encodes it later."""
        if (
            not isinstance(value, str)
            or len(value) > self.most
            or not re.fullmatch(self.pattern, value)
            or not (value.isascii() or _is_unicode(value))
        ):
            raise Misshapen(f"{where}: {self.words}")
        return value

    write = read

    def schema(self) -> Schema:
        """As `pattern` searches in JSON Schema, it is anchored there."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "maxLength": self.most}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A text that a parser of the vocabulary reads further."""

    text: Text
    parse: Callable[[str], object]

    def read(self, value: object, where: str) -> object:
        """The canonical value."""
        try:
            return self.parse(self.text.read(value, where))
        except Unparsable as error:
            raise Misshapen(f"{where}: {error.message}") from None

    def write(self, value: object, where: str) -> str:
        """Its text."""
        return self.text.read(str(value), where)

    def schema(self) -> Schema:
        """What the parser knows beyond the pattern is not in it."""
        return self.text.schema()


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    least: int
    most: int

    def read(self, value: object, where: str) -> int:
        """`True` is an int to Python and none to JSON."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise Misshapen(f"{where}: a whole number from {self.least} to {self.most}")
        return value

    write = read

    def schema(self) -> Schema:
        """With its bounds."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    def read(self, value: object, where: str) -> bool:
        """Neither 0 nor 1 will do."""
        if type(value) is not bool:
            raise Misshapen(f"{where}: true or false")
        return value

    write = read

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, or of an enumeration of words."""

    words: tuple[str, ...]
    made: Callable[[str], str] = str

    def read(self, value: object, where: str) -> str:
        """By its exact spelling."""
        if not isinstance(value, str) or value not in self.words:
            raise Misshapen(f"{where}: one of {', '.join(self.words)}")
        return self.made(value)

    def write(self, value: object, where: str) -> str:
        """As a plain text."""
        return str(self.read(value, where))

    def schema(self) -> Schema:
        """The words."""
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value or null."""

    shape: Shape

    def read(self, value: object, where: str) -> object:
        """null is None."""
        return None if value is None else self.shape.read(value, where)

    def write(self, value: object, where: str) -> object:
        """None is null."""
        return None if value is None else self.shape.write(value, where)

    def schema(self) -> Schema:
        """Either."""
        return {"anyOf": [self.shape.schema(), {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class ListOf:
    """So many values of one shape."""

    shape: Shape
    most: int
    least: int = 0
    distinct: bool = False

    def read(self, value: object, where: str) -> tuple[object, ...]:
        """In their order."""
        if not isinstance(value, list):
            raise Misshapen(f"{where}: a list")
        items = self.bounded(value, where)
        found = tuple(self.shape.read(item, f"{where}[]") for item in items)
        if self.distinct and len(set(found)) != len(found):
            raise Misshapen(f"{where}: each at most once")
        return found

    def write(self, value: tuple[object, ...], where: str) -> list[object]:
        """As an array."""
        return [self.shape.write(item, f"{where}[]") for item in self.bounded(value, where)]

    def bounded(self, value: Sequence[object], where: str) -> Sequence[object]:
        """The same, unless there are too many or too few."""
        if not self.least <= len(value) <= self.most:
            raise Misshapen(f"{where}: {self.least} to {self.most} of them")
        return value

    def schema(self) -> Schema:
        """An array with its bound."""
        more: Schema = {"uniqueItems": True} if self.distinct else {}
        if self.least:
            more["minItems"] = self.least
        return {"type": "array", "items": self.shape.schema(), "maxItems": self.most} | more


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a record."""

    shape: Shape
    meaning: str
    optional: bool = False
    """May be missing in a request; then the record's class has the default."""


class Record:
    """A JSON object with exactly these members, and the value class that it becomes."""

    __slots__ = ("fields", "made", "name")

    def __init__(self, made: Callable[..., object], fields: Mapping[str, Field]) -> None:
        if not isinstance(made, type) or field_names(made) != tuple(fields):
            raise TypeError(f"{made} and its record have different fields")
        self.made = made
        self.name = made.__name__
        self.fields = fields

    def read(self, value: object, where: str) -> object:
        """An unknown member is refused: a misspelt limit must not be no limit."""
        if not isinstance(value, dict):
            raise Misshapen(f"{where}: an object")
        if not value.keys() <= self.fields.keys():
            raise Misshapen(f"{where}: has an unknown member; known are {', '.join(self.fields)}")
        found = {}
        for name, field in self.fields.items():
            if name in value:
                found[name] = field.shape.read(value[name], f"{where}.{name}")
            elif not field.optional:
                raise Misshapen(f"{where}.{name}: is missing")
        return self.made(**found)

    def write(self, value: object, where: str) -> dict[str, object]:
        """Only what is named here leaves."""
        return {
            name: field.shape.write(getattr(value, name), f"{where}.{name}")
            for name, field in self.fields.items()
        }

    def schema(self) -> Schema:
        """By reference: `openapi.py` puts the definitions in one place."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def definition(self) -> Schema:
        """What the reference refers to."""
        return {
            "type": "object",
            "properties": {
                name: field.shape.schema() | {"description": field.meaning}
                for name, field in self.fields.items()
            },
            "required": [name for name, field in self.fields.items() if not field.optional],
            "additionalProperties": False,
        }

    def nested(self) -> list[Record]:
        """This record and those within it."""
        found = [self]
        for field in self.fields.values():
            inner: object = field.shape
            while isinstance(inner, ListOf | Maybe):
                inner = inner.shape
            if isinstance(inner, Record):
                found += inner.nested()
        return found


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
