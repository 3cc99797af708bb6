"""Answers a client that asks which fields a type has, from the table, without asking the forge.

gh asks this of servers other than github.com, to find out their version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from graphql import (
    FieldNode,
    GraphQLEnumType,
    GraphQLInputObjectType,
    GraphQLInterfaceType,
    GraphQLObjectType,
    StringValueNode,
)

from keyhole.policy.graphql.refusal import refusal

if TYPE_CHECKING:
    from graphql import GraphQLNamedType

    from keyhole.policy.graphql.document import GraphqlOperation
    from keyhole.policy.graphql.table import Table

_TYPE = "__type"
_LISTS = ("fields", "enumValues", "inputFields")


def answer_introspection(table: Table, operation: GraphqlOperation) -> bytes | None:
    """The answer to a document that has only `__type(name: "…")`; None for any other. Raises
    RequestUnfit."""
    roots = operation.node.selection_set.selections
    names = {each.name.value for each in roots if isinstance(each, FieldNode)}
    if _TYPE not in names and "__schema" not in names:
        return None
    answer: dict[str, Any] = {}
    for each in roots:
        if not isinstance(each, FieldNode) or each.name.value != _TYPE:
            raise refusal("introspection is closed, but for the names of a type's fields")
        key = each.alias.value if each.alias else _TYPE
        answer[key] = _described(table, each)
    return msgspec.json.encode({"data": answer})


def _described(table: Table, node: FieldNode) -> dict[str, Any] | None:
    given = [argument.value for argument in node.arguments or ()]
    if len(given) != 1 or not isinstance(given[0], StringValueNode) or node.selection_set is None:
        raise refusal("introspection is closed, but for the names of a type's fields")
    found = table.type_of(given[0].value)
    if found is None:
        return None
    described: dict[str, Any] = {}
    for part in node.selection_set.selections:
        if not isinstance(part, FieldNode):
            raise refusal("introspection is closed, but for the names of a type's fields")
        name = part.name.value
        key = part.alias.value if part.alias else name
        if name == "name":
            described[key] = found.name
        elif name in _LISTS:
            below = part.selection_set.selections if part.selection_set else ()
            keys = [_only_name(each) for each in below]
            described[key] = [dict.fromkeys(keys, one) for one in _names(found, name)]
        else:
            raise refusal(f"introspection of '{name}' is closed")
    return described


def _only_name(node: object) -> str:
    if not isinstance(node, FieldNode) or node.name.value != "name" or node.selection_set:
        raise refusal("introspection is closed, but for names")
    return node.alias.value if node.alias else "name"


def _names(found: GraphQLNamedType, what: str) -> list[str]:
    if what == "fields" and isinstance(found, GraphQLObjectType | GraphQLInterfaceType):
        return list(found.fields)
    if what == "enumValues" and isinstance(found, GraphQLEnumType):
        return list(found.values)
    if what == "inputFields" and isinstance(found, GraphQLInputObjectType):
        return list(found.fields)
    return []
