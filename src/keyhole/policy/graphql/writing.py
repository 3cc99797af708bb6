"""Writes the document that the forge gets, from the tree that was judged.

The client's own text is never sent, so the forge cannot read it differently. For each object that
may belong to another repository, the document also asks for its repository, under aliases of the
gateway; `answer.py` checks these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from graphql import GraphQLObjectType, NullValueNode, print_ast
from graphql.utilities import value_to_literal

from keyhole.policy.graphql.selection import OURS, TYPENAME, FieldSelection, Selected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from graphql import GraphQLInputType

    from keyhole.policy.graphql.table import Table

TYPE = f"{OURS}type"
NAME = f"{OURS}name"
WITHIN = f"{OURS}in"
HEAD, BASE, CROSSES = f"{OURS}head", f"{OURS}base", f"{OURS}crosses"

_OWN_NAME = "nameWithOwner"
_BRANCHES = f"{HEAD}: headRefName {BASE}: baseRefName {CROSSES}: isCrossRepository"

_INPUT = "input"


def write_query(table: Table, tree: FieldSelection) -> bytes:
    """The body of a query."""
    return msgspec.json.encode({"query": f"query {{ {_fields(table, tree)} }}"})


def write_mutation(table: Table, key: str, selected: Selected) -> bytes:
    """The body of a mutation. Its input is a variable, as clients send it: texts are long."""
    name = f"{key}: {selected.name}(input: $input){_below(table, selected)}"
    text = f"mutation($input: {selected.types[_INPUT]}) {{ {name} }}"
    return msgspec.json.encode({"query": text, "variables": {_INPUT: selected.arguments[_INPUT]}})


def _fields(table: Table, selection: FieldSelection) -> str:
    words = [*_asked(table, selection), *_added(table, selection)]
    return " ".join(words) or f"{TYPE}: {TYPENAME}"


def _asked(table: Table, selection: FieldSelection) -> Iterator[str]:
    for key, each in selection.fields.items():
        if not each.is_closed:
            yield _field(table, key, each)
    if isinstance(selection.type, GraphQLObjectType):
        return
    yield f"{TYPE}: {TYPENAME}"
    scoped = {name for name in table.possible(selection.type) if table.scope(name)}
    for name in sorted(selection.cases.keys() | scoped):
        case = selection.cases.get(name) or FieldSelection(table.object_type(name))
        yield f"... on {name} {{ {_fields(table, case)} }}"


def _added(table: Table, selection: FieldSelection) -> Iterator[str]:
    by = table.scope(selection.type.name)
    if by == _OWN_NAME:
        yield f"{NAME}: {_OWN_NAME}"
    elif by is not None:
        yield f"{WITHIN}: {by} {{ {NAME}: {_OWN_NAME} }}"
    learns = any(each.name == "id" for each in selection.fields.values())
    if learns and table.says("branches", selection.type) is not None:
        yield _BRANCHES


def _field(table: Table, key: str, each: Selected) -> str:
    name = each.name if key == each.name else f"{key}: {each.name}"
    if each.arguments:
        given = [f"{a}: {_literal(value, each.types[a])}" for a, value in each.arguments.items()]
        name = f"{name}({', '.join(given)})"
    return name + _below(table, each)


def _below(table: Table, each: Selected) -> str:
    return "" if each.below is None else f" {{ {_fields(table, each.below)} }}"


def _literal(value: Any, of: GraphQLInputType) -> str:  # noqa: ANN401 - of the table's type
    return print_ast(value_to_literal(value, of) or NullValueNode())
