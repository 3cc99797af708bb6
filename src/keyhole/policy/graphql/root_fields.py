"""The fields with which a GraphQL document changes something, for a service without a schema."""

from __future__ import annotations

from graphql import (
    FieldNode,
    FragmentDefinitionNode,
    GraphQLError,
    OperationDefinitionNode,
    OperationType,
)

from keyhole.model.errors import Malformed
from keyhole.policy.graphql.document import parse_bounded

SUBSCRIPTION = "subscription"
"""The name for every subscription."""


def changing_fields(text: str) -> tuple[str, ...]:
    """The root fields of all mutations of a document, whichever the request selects; empty for a
    document that only reads. Raises Malformed."""
    try:
        document = parse_bounded(text)
    except GraphQLError:
        raise Malformed("the document cannot be read") from None
    found: dict[str, None] = {}
    for each in document.definitions:
        if isinstance(each, FragmentDefinitionNode):
            continue  # read where it is used; at the root of a mutation it may not be
        if not isinstance(each, OperationDefinitionNode):
            raise Malformed("a document has operations and fragments, and nothing else")
        if each.operation is OperationType.MUTATION:
            for selection in each.selection_set.selections:
                if not isinstance(selection, FieldNode):
                    raise Malformed("a mutation names its fields itself, not by a fragment")
                found[selection.name.value] = None
        elif each.operation is OperationType.SUBSCRIPTION:
            found[SUBSCRIPTION] = None
    return tuple(found)
