"""Reads the body of a GraphQL request: one operation, its fragments, the values of its variables.

Every number that the client controls is bounded here or in `selection.py` (I9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from graphql import (
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    ListTypeNode,
    NonNullTypeNode,
    OperationDefinitionNode,
    OperationType,
    VariableValues,
    assert_object_type,
    get_variable_values,
    parse,
)
from msgspec import Struct

from keyhole.policy.graphql.refusal import refusal

if TYPE_CHECKING:
    from graphql import DocumentNode, NamedTypeNode, TypeNode

    from keyhole.policy.graphql.table import Table
    from keyhole.wire.strict_json import JsonValue

MAX_DOCUMENT = 32 << 10
"""Characters of a document. The longest that gh sends has 4,000."""

MAX_TOKENS = 2_000
"""Tokens of a document: a hundred take a third of a millisecond. gh's documents have 700."""

MAX_VALUES = 2_000
"""Values of the variables, of which a thousand take a millisecond. gh sends twenty."""

MAX_COMMENTS = 50
"""Comments of a document; programs send none."""

_KEYS = frozenset({"query", "variables", "operationName"})


class GraphqlOperation(Struct, frozen=True):
    """The one operation of a request."""

    node: OperationDefinitionNode
    fragments: dict[str, FragmentDefinitionNode]
    variables: VariableValues

    @property
    def writes(self) -> bool:
        """Whether it is a mutation."""
        return self.node.operation is OperationType.MUTATION


def read_operation(table: Table, body: JsonValue) -> GraphqlOperation:
    """Read the operation of a body. Raises RequestUnfit."""
    if not isinstance(body, dict):
        raise refusal("a request is one JSON object; several at once are closed")
    if extra := sorted(body.keys() - _KEYS):
        # Persisted queries (`extensions`, `id`): a document that is not here cannot be judged.
        raise refusal(f"'{extra[0]}' beside 'query' and 'variables' is closed")
    text, values, chosen = body.get("query"), body.get("variables"), body.get("operationName")
    if not isinstance(text, str) or not isinstance(values, dict | None):
        raise refusal("'query' is a text and 'variables' an object")
    _check_values(values)
    node, fragments = _definitions(text)
    _check_roots(table, node)
    named = node.name.value if node.name else None
    if chosen not in (None, "", named):
        raise refusal("'operationName' names no operation of the document")
    return GraphqlOperation(node, fragments, _variables(table, node, values or {}))


def _check_values(values: JsonValue) -> None:
    """Attack: a list of 90,000 ids, for which graphql-core takes 140 ms (I12)."""
    waiting, count = [values], 0
    while waiting:
        one = waiting.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        if count > MAX_VALUES:
            raise refusal(f"the variables have more than {MAX_VALUES} values")
        waiting += inner


def parse_bounded(text: str) -> DocumentNode:
    """Parse a document within the bounds (I9). Raises GraphQLError."""
    return parse(
        text,
        no_location=True,
        max_lexical_tokens=MAX_TOKENS,
        max_comments=MAX_COMMENTS,
        max_source_length=MAX_DOCUMENT,
    )


def _definitions(
    text: str,
) -> tuple[OperationDefinitionNode, dict[str, FragmentDefinitionNode]]:
    try:
        document = parse_bounded(text)
    except GraphQLError as error:
        raise refusal(f"the document cannot be read: {error.message}") from None
    operations: list[OperationDefinitionNode] = []
    fragments: dict[str, FragmentDefinitionNode] = {}
    for each in document.definitions:
        if isinstance(each, OperationDefinitionNode):
            operations.append(each)
        elif isinstance(each, FragmentDefinitionNode) and each.name.value not in fragments:
            fragments[each.name.value] = each
        else:
            raise refusal("a document has one operation, and fragments with different names")
    if len(operations) != 1:
        raise refusal(f"a document has one operation; this one has {len(operations)}")
    (operation,) = operations
    if operation.operation is OperationType.SUBSCRIPTION:
        raise refusal("subscriptions are closed")
    if operation.directives:
        raise refusal("directives on an operation are closed")
    return operation, fragments


def _check_roots(table: Table, node: OperationDefinitionNode) -> None:
    """Refuse a denied root field by its name. Otherwise the error would name the type of its input,
    which the table does not have either."""
    root = assert_object_type(table.schema.get_root_type(node.operation))
    for each in node.selection_set.selections:
        name = each.name.value if isinstance(each, FieldNode) else "__"
        if name not in root.fields and not name.startswith("__"):
            if node.operation is OperationType.MUTATION:
                raise refusal(f"the mutation {name} is closed at every level of 'api'")
            raise refusal(f"the field {root.name}.{name} is closed")


def _variables(
    table: Table, node: OperationDefinitionNode, values: dict[str, Any]
) -> VariableValues:
    definitions = node.variable_definitions or ()
    for each in definitions:
        if (of := _named(each.type)) not in table.schema.type_map:
            raise refusal(f"the type {of} is closed")
    found = get_variable_values(
        table.schema, definitions, values, max_errors=1, hide_suggestions=True
    )
    if isinstance(found, list):
        # Such as APPROVE, an event of reviews that the table does not have.
        why = "a variable has a value that is closed, or not of its type"
        raise refusal(f"{why}: {found[0].message}")
    return found


def _named(of: TypeNode) -> str:
    """The name of a variable's type, without the marks of lists and of values that must be."""
    while isinstance(of, ListTypeNode | NonNullTypeNode):
        of = of.type
    return cast("NamedTypeNode", of).name.value
