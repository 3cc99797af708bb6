"""Resolves an operation to the tree of fields that it asks for, by the table of allowed fields.

It inlines fragments, evaluates directives, replaces variables by their values, and merges fields
that have one name in the answer. Nothing is left that could be read in two ways. A field that the
table does not have is refused by its name (I3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphql import (
    FieldNode,
    FragmentSpreadNode,
    GraphQLError,
    GraphQLIncludeDirective,
    GraphQLInterfaceType,
    GraphQLObjectType,
    GraphQLUnionType,
    InlineFragmentNode,
    Undefined,
    assert_object_type,
    get_argument_values,
    get_named_type,
    is_leaf_type,
)
from graphql.utilities import coerce_input_value

from keyhole.policy.graphql.refusal import refusal
from keyhole.policy.graphql.table import NULL

if TYPE_CHECKING:
    from graphql import DirectiveNode, GraphQLField, GraphQLInputType, SelectionNode

    from keyhole.policy.graphql.document import GraphqlOperation
    from keyhole.policy.graphql.table import Table

MAX_FIELDS = 2_000
"""Fields of an operation with its fragments inlined, and the spreads on the way. Attack: fragments
that each spread another one twice grow exponentially. gh's operations have 300."""

MAX_DEPTH = 24
"""Levels of nested fields and fragments. gh's operations have 14."""

OURS = "keyhole_"
"""The prefix of names that the gateway adds to a document; a client's name may not have it."""

TYPENAME = "__typename"
ID = "id"

_WANTED = {"include": True, "skip": False}
"""Directives, and the value of `if` that keeps their field."""

_IF = GraphQLIncludeDirective
"""Both have this one argument."""

Composite = GraphQLObjectType | GraphQLInterfaceType | GraphQLUnionType


class Selected:
    """A field that is asked for. `below` is None for a field without fields."""

    __slots__ = ("arguments", "below", "field", "is_closed", "name")

    def __init__(
        self,
        name: str,
        field: GraphQLField | None = None,
        arguments: dict[str, Any] | None = None,
        below: FieldSelection | None = None,
    ) -> None:
        self.name = name
        self.field = field
        """None for `__typename`."""
        self.arguments = arguments or {}
        self.below = below
        self.is_closed = field is not None and str(field.type) == NULL
        """Whether it is answered as null."""

    @property
    def types(self) -> dict[str, GraphQLInputType]:
        """The types of its arguments."""
        return {name: each.type for name, each in self.field.args.items()} if self.field else {}


class FieldSelection:
    """The fields that are asked for of an object, by their names in the answer."""

    __slots__ = ("_read_of", "cases", "fields", "type")

    def __init__(self, of: Composite) -> None:
        self.type = of
        self.fields: dict[str, Selected] = {}
        self.cases: dict[str, FieldSelection] = {}
        """For an interface or a union: fields of only one of its types."""
        self._read_of: dict[str, tuple[tuple[str, Selected], ...]] = {}

    def read_of(self, name: str) -> tuple[tuple[str, Selected], ...]:
        """The fields that are checked in an answer's object of this type."""
        # Attack: an answer that names a different type in each object. All unknown types share one
        # entry.
        case = name if name in self.cases else ""
        known = self._read_of.get(case)
        if known is None:
            own = self.cases[case].fields.items() if case else ()
            known = self._read_of[case] = tuple(
                (key, each)
                for key, each in (*self.fields.items(), *own)
                if each.is_closed or each.below is not None or each.name == ID
            )
        return known


class SelectionResolver:
    """Resolves one operation."""

    def __init__(self, table: Table, operation: GraphqlOperation) -> None:
        self._table = table
        self._operation = operation
        self._left = MAX_FIELDS
        self._open: list[str] = []

    def resolve(self) -> FieldSelection:
        """The tree. Raises RequestUnfit."""
        node = self._operation.node
        root = self._table.schema.get_root_type(node.operation)
        tree = FieldSelection(assert_object_type(root))
        self._collect(node.selection_set.selections, tree, 0)
        return tree

    def _collect(self, nodes: tuple[SelectionNode, ...], into: FieldSelection, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise refusal(f"fields lie more than {MAX_DEPTH} deep")
        for node in nodes:
            self._left -= 1
            if self._left < 0:
                raise refusal(f"more than {MAX_FIELDS} fields")
            if not self._included(node.directives or ()):
                continue
            if isinstance(node, FieldNode):
                self._add(node, into, depth)
            elif isinstance(node, FragmentSpreadNode):
                self._spread(node, into, depth)
            elif isinstance(node, InlineFragmentNode):  # pragma: no branch - there is no fourth
                on = node.type_condition.name.value if node.type_condition else into.type.name
                self._narrow(on, node.selection_set.selections, into, depth)

    def _included(self, directives: tuple[DirectiveNode, ...]) -> bool:
        kept = True
        for node in directives:
            wanted = _WANTED.get(node.name.value)
            if wanted is None:
                raise refusal(f"the directive @{node.name.value} is closed")
            try:
                found = get_argument_values(_IF, node, self._operation.variables)
            except GraphQLError as error:
                raise refusal(f"@{node.name.value}: {error.message}") from None
            kept = kept and found["if"] is wanted
        return kept

    # ── fragments ─────────────────────────────────────────────────────────────────────────────────

    def _spread(self, node: FragmentSpreadNode, into: FieldSelection, depth: int) -> None:
        name = node.name.value
        fragment = self._operation.fragments.get(name)
        if fragment is None or fragment.directives:
            raise refusal(f"there is no plain fragment '{name}'")
        if name in self._open:
            raise refusal(f"the fragment '{name}' spreads itself")
        self._open.append(name)
        on = fragment.type_condition.name.value
        self._narrow(on, fragment.selection_set.selections, into, depth)
        self._open.pop()

    def _narrow(
        self, on: str, nodes: tuple[SelectionNode, ...], into: FieldSelection, depth: int
    ) -> None:
        """Collect a fragment's fields for the types to which it applies; none if it never does."""
        of = self._table.type_of(on)
        if not isinstance(of, Composite):
            raise refusal(f"the type {on} is closed")
        fitting = self._names(of)
        exact = isinstance(into.type, GraphQLObjectType)
        if of is into.type or (exact and into.type.name in fitting):
            self._collect(nodes, into, depth + 1)
            return
        for name in sorted(fitting & self._names(into.type)):
            case = into.cases.setdefault(name, FieldSelection(self._table.object_type(name)))
            self._collect(nodes, case, depth + 1)
            for key, each in case.fields.items():
                if key in into.fields:
                    _join(key, into.fields[key], each)

    def _names(self, of: Composite) -> frozenset[str]:
        if isinstance(of, GraphQLObjectType):
            return frozenset({of.name})
        return self._table.possible(of)

    # ── fields ────────────────────────────────────────────────────────────────────────────────────

    def _add(self, node: FieldNode, into: FieldSelection, depth: int) -> None:
        name = node.name.value
        key = node.alias.value if node.alias else name
        if key.startswith((OURS, "__")) and key != TYPENAME:
            raise refusal(f"the alias '{key}' is closed")
        selected = self._read(node, name, into)
        known = into.fields.get(key)
        if known is None:
            into.fields[key] = selected
        else:
            _join(key, known, selected)
            selected = known
        for case in into.cases.values():
            if key in case.fields:
                _join(key, selected, case.fields[key])
        if selected.below is not None and node.selection_set:
            self._collect(node.selection_set.selections, selected.below, depth + 1)

    def _read(self, node: FieldNode, name: str, into: FieldSelection) -> Selected:
        if name == TYPENAME:
            if node.arguments or node.selection_set:
                raise refusal("__typename has neither arguments nor fields")
            return Selected(name)
        place = f"{into.type.name}.{name}"
        field = None if isinstance(into.type, GraphQLUnionType) else into.type.fields.get(name)
        if field is None:
            raise refusal(f"the field {place} is closed")
        if str(field.type) == NULL:
            return Selected(name, field)
        of = get_named_type(field.type)
        plain = is_leaf_type(of)
        if plain is bool(node.selection_set and node.selection_set.selections):
            raise refusal(f"the field {place} {'has no' if plain else 'needs'} fields")
        below = FieldSelection(of) if isinstance(of, Composite) else None
        return Selected(name, field, self._arguments(node, field, place), below)

    def _arguments(self, node: FieldNode, field: GraphQLField, place: str) -> dict[str, Any]:
        for argument in node.arguments or ():
            if argument.name.value not in field.args:
                raise refusal(f"the argument {place}({argument.name.value}:) is closed")
        try:
            found = get_argument_values(field, node, self._operation.variables)
        except GraphQLError as error:
            raise refusal(f"{place}: {error.message}") from None
        for name, value in found.items():
            # The library checks a variable's type only in its validation, which is not run here.
            again = coerce_input_value(value, field.args[name].type)
            if again is Undefined:
                raise refusal(f"{place}({name}:) has a variable of another type")
        return found


def _join(key: str, one: Selected, two: Selected) -> None:
    """Two fields with one name in the answer must be the same field."""
    if one.name != two.name or one.arguments != two.arguments:
        raise refusal(f"'{key}' stands for two different fields")
