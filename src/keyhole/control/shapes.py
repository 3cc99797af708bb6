"""Shapes of JSON values in requests and answers, and their JSON Schema.

`operation_table.py` builds requests and answers from these. A shape reads a JSON value, or refuses
it; the same shape checks an answer before it leaves, so that nothing is sent that the published
schema does not name. A refusal repeats nothing of the refused value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msgspec import Struct

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Schema = dict[str, Any]

_Made = TypeVar("_Made", bound=Struct)


class ValueShape(Protocol):
    """The form of one value."""

    def read(self, value: object, where: str) -> Any:  # noqa: ANN401 - each shape has its own
        """Turn a JSON value into a value of Keyhole; `where` names it in a refusal."""

    def write(self, value: Any, where: str) -> object:  # noqa: ANN401
        """A value of ours for JSON; the inverse of `read`."""

    def schema(self) -> Schema:
        """The same in JSON Schema (2020-12, as OpenAPI 3.1 has it)."""


class TextShape(Struct, frozen=True):
    """A text that a pattern matches whole. The pattern bounds its alphabet."""

    pattern: str
    most: int
    words: str
    """A description of the text, for the refusal."""

    def read(self, value: object, where: str) -> str:
        """Refuse a lone surrogate, which cannot be encoded later."""
        if (
            not isinstance(value, str)
            or len(value) > self.most
            or not re.fullmatch(self.pattern, value)
            or not (value.isascii() or _is_unicode(value))
        ):
            raise Unparsable(f"{where}: {self.words}")
        return value

    write = read

    def schema(self) -> Schema:
        """The pattern, anchored, since `pattern` searches in JSON Schema."""
        return {"type": "string", "pattern": f"^(?:{self.pattern})$", "maxLength": self.most}


class ParsedShape(Struct, frozen=True):
    """A text that a parser of the vocabulary reads further."""

    text: TextShape
    parse: Callable[[str], object]

    def read(self, value: object, where: str) -> object:
        """The canonical value."""
        text = self.text.read(value, where)
        try:
            return self.parse(text)
        except Unparsable as error:
            raise Unparsable(f"{where}: {error.message}") from None

    def write(self, value: object, where: str) -> str:
        """The value's text."""
        return self.text.read(str(value), where)

    def schema(self) -> Schema:
        """The pattern alone; the parser's further checks are not in it."""
        return self.text.schema()


class IntegerShape(Struct, frozen=True):
    """A whole number within bounds."""

    least: int
    most: int

    def read(self, value: object, where: str) -> int:
        """`True` is an int to Python and none to JSON."""
        if type(value) is not int or not self.least <= value <= self.most:
            raise Unparsable(f"{where}: a whole number from {self.least} to {self.most}")
        return value

    write = read

    def schema(self) -> Schema:
        """With its bounds."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


class BooleanShape(Struct, frozen=True):
    """Yes or no."""

    def read(self, value: object, where: str) -> bool:
        """Refuse 0 and 1."""
        if type(value) is not bool:
            raise Unparsable(f"{where}: true or false")
        return value

    write = read

    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}


class ChoiceShape(Struct, frozen=True):
    """One of a few words, or of an enumeration of words."""

    words: tuple[str, ...]
    made: Callable[[str], str] = str

    def read(self, value: object, where: str) -> str:
        """By its exact spelling."""
        if not isinstance(value, str) or value not in self.words:
            raise Unparsable(f"{where}: one of {', '.join(self.words)}")
        return self.made(value)

    def write(self, value: object, where: str) -> str:
        """The word as plain text."""
        return str(self.read(value, where))

    def schema(self) -> Schema:
        """The words."""
        return {"type": "string", "enum": list(self.words)}


class OptionalShape(Struct, frozen=True):
    """A value or null."""

    shape: ValueShape

    def read(self, value: object, where: str) -> object:
        """null is None."""
        return None if value is None else self.shape.read(value, where)

    def write(self, value: object, where: str) -> object:
        """None is null."""
        return None if value is None else self.shape.write(value, where)

    def schema(self) -> Schema:
        """Either."""
        return {"anyOf": [self.shape.schema(), {"type": "null"}]}


class ListShape(Struct, frozen=True):
    """A list of values of one shape."""

    shape: ValueShape
    most: int
    least: int = 0
    distinct: bool = False

    def read(self, value: object, where: str) -> tuple[object, ...]:
        """The values in their order."""
        if not isinstance(value, list):
            raise Unparsable(f"{where}: a list")
        items = self.bounded(value, where)
        found = tuple(self.shape.read(item, f"{where}[]") for item in items)
        if self.distinct and len(set(found)) != len(found):
            raise Unparsable(f"{where}: each at most once")
        return found

    def write(self, value: tuple[object, ...], where: str) -> list[object]:
        """The values as an array."""
        return [self.shape.write(item, f"{where}[]") for item in self.bounded(value, where)]

    def bounded(self, value: Sequence[object], where: str) -> Sequence[object]:
        """The same, unless there are too many or too few."""
        if not self.least <= len(value) <= self.most:
            raise Unparsable(f"{where}: {self.least} to {self.most} of them")
        return value

    def schema(self) -> Schema:
        """An array with its bound."""
        more: Schema = {"uniqueItems": True} if self.distinct else {}
        if self.least:
            more["minItems"] = self.least
        return {"type": "array", "items": self.shape.schema(), "maxItems": self.most} | more


class FieldShape(Struct, frozen=True):
    """One member of a record."""

    shape: ValueShape
    meaning: str
    optional: bool = False
    """May be missing in a request; then the record's class has the default."""


class RecordShape(Generic[_Made]):
    """A JSON object with exactly these members, and the value class that it becomes."""

    __slots__ = ("fields", "made", "name")

    def __init__(self, made: type[_Made], fields: Mapping[str, FieldShape]) -> None:
        if made.__struct_fields__ != tuple(fields):
            raise TypeError(f"{made} and its record have different fields")
        self.made = made
        self.name = made.__name__
        self.fields = fields

    def read(self, value: object, where: str) -> _Made:
        """An unknown member is refused: a misspelt limit must not be no limit."""
        if not isinstance(value, dict):
            raise Unparsable(f"{where}: an object")
        if not value.keys() <= self.fields.keys():
            raise Unparsable(f"{where}: has an unknown member; known are {', '.join(self.fields)}")
        found = {}
        for name, field in self.fields.items():
            if name in value:
                found[name] = field.shape.read(value[name], f"{where}.{name}")
            elif not field.optional:
                raise Unparsable(f"{where}.{name}: is missing")
        return self.made(**found)

    def write(self, value: object, where: str) -> dict[str, object]:
        """Only the members that are named here are written."""
        return {
            name: field.shape.write(getattr(value, name), f"{where}.{name}")
            for name, field in self.fields.items()
        }

    def schema(self) -> Schema:
        """By reference: `openapi.py` puts the definitions in one place."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def definition(self) -> Schema:
        """The definition that the reference names."""
        return {
            "type": "object",
            "properties": {
                name: field.shape.schema() | {"description": field.meaning}
                for name, field in self.fields.items()
            },
            "required": [name for name, field in self.fields.items() if not field.optional],
            "additionalProperties": False,
        }

    def nested(self) -> list[RecordShape[Any]]:
        """This record and those within it."""
        found: list[RecordShape[Any]] = [self]
        for field in self.fields.values():
            inner: object = field.shape
            while isinstance(inner, ListShape | OptionalShape):
                inner = inner.shape
            if isinstance(inner, RecordShape):
                found += inner.nested()
        return found


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
