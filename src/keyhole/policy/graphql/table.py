"""The table of allowed fields: the part of a forge's schema that is open.

`github.graphql` is written in GraphQL's schema language. A type, field or argument that is not in
it is denied (I3). Its directives name further checks; `Table` reads them.
"""

from __future__ import annotations

import functools
import pkgutil
from typing import TYPE_CHECKING, Any

from graphql import (
    GraphQLError,
    GraphQLScalarType,
    assert_object_type,
    build_schema,
    get_directive_values,
    specified_scalar_types,
)

if TYPE_CHECKING:
    from graphql import (
        GraphQLAbstractType,
        GraphQLField,
        GraphQLInputField,
        GraphQLNamedType,
        GraphQLObjectType,
    )

NULL = "Null"
"""The type of fields that clients always ask for, but that lead out of the repository. The gateway
answers null and never asks the forge for them."""


class Table:
    """One forge's table."""

    def __init__(self, text: str) -> None:
        self.schema = build_schema(text, assume_valid_sdl=True, no_location=True)
        for named in self.schema.type_map.values():
            if isinstance(named, GraphQLScalarType) and named.name not in specified_scalar_types:
                # The library accepts any value for a custom scalar.
                named.coerce_input_value = _only_text
        self._scopes: dict[str, str] = {
            name: said["by"]
            for name, named in self.schema.type_map.items()
            if (said := self.says("scoped", named)) is not None
        }

    def type_of(self, name: str) -> GraphQLNamedType | None:
        """An open type."""
        return None if name.startswith("__") else self.schema.type_map.get(name)

    def object_type(self, name: str) -> GraphQLObjectType:
        """The type of objects with this name. Raises KeyError or TypeError."""
        return assert_object_type(self.schema.type_map[name])

    def possible(self, abstract: GraphQLAbstractType) -> frozenset[str]:
        """The allowed types of an interface or a union."""
        return frozenset(each.name for each in self.schema.get_possible_types(abstract))

    def scope(self, name: str) -> str | None:
        """The field of this type that names an object's repository; None: there is none."""
        return self._scopes.get(name)

    def says(
        self, directive: str, of: GraphQLField | GraphQLInputField | GraphQLNamedType
    ) -> dict[str, Any] | None:
        """The values of a directive; None where it does not stand there."""
        definition = self.schema.get_directive(directive)
        if definition is None or of.ast_node is None:
            return None
        return get_directive_values(definition, of.ast_node)


def _only_text(value: Any) -> str:  # noqa: ANN401 - as the library calls it
    if not isinstance(value, str):
        raise GraphQLError("it is not a text")
    return value


@functools.cache
def github_table() -> Table:
    """GitHub's."""
    return Table((pkgutil.get_data(__name__, "github.graphql") or b"").decode())
