"""Reads the forge's answer: checks each repository in it, learns ids, and turns it into the answer
to the client's own document.

Objects of repositories that are not granted are removed. Denied fields become null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from graphql import GraphQLObjectType

from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit
from keyhole.model.repository import Forge, Repository
from keyhole.policy.collected_answer import CollectedAnswer
from keyhole.policy.graphql.learnt_ids import Branches, LearntIds, LearntNode
from keyhole.policy.graphql.writing import BASE, CROSSES, HEAD, NAME, TYPE, WITHIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from keyhole.policy.graphql.roots import Absent
    from keyhole.policy.graphql.selection import FieldSelection
    from keyhole.policy.graphql.table import Table

MAX_LOOKED_AT = 50_000
"""Fields and entries of an answer that are checked. Attack: an answer of ten thousand empty
objects, to a document that asks for two thousand fields of each (I12)."""

_OK = 200
_OF_ERRORS = ("message", "type", "path")
_FOREIGN = object()
"""Replaces an object of a repository that is not granted."""


class GraphqlAnswer(CollectedAnswer):
    """Reads one answer."""

    def __init__(
        self,
        table: Table,
        tree: FieldSelection,
        granted: AbstractSet[Repository],
        ids: LearntIds,
        absent: tuple[Absent, ...] = (),
    ) -> None:
        super().__init__()
        self._table = table
        self._tree = tree
        self._granted = granted
        self._ids = ids
        self._generation = ids.generation
        self._absent = absent
        self._names: dict[str, Repository | None] = {}
        self._status = 0
        self._left = MAX_LOOKED_AT

    def begin(self, status: int, fields: Mapping[str, str]) -> bool:
        """As `AnswerRewriter`."""
        self._status = status
        return True

    def end(self) -> bytes:
        """As `AnswerRewriter`."""
        data = self._collected()
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            value = None
        if not isinstance(value, dict) or "data" not in value:
            if self._status == _OK and not (isinstance(value, dict) and "errors" in value):
                raise ResponseUnfit(Reason.GRAPHQL, "the answer is not GraphQL's")
            return data  # an error of the forge or of a proxy before it
        try:
            return msgspec.json.encode(answer_of(self.read(value), self._absent))
        except RecursionError:
            raise ResponseUnfit(Reason.GRAPHQL, "the answer is nested too deeply") from None

    def read(self, value: dict[str, Any]) -> dict[str, Any]:
        """The answer, checked."""
        checked: dict[str, Any] = {"data": self._object(value["data"], self._tree, None)}
        errors = value.get("errors")
        if isinstance(errors, list) and errors:
            checked["errors"] = [
                {name: each[name] for name in _OF_ERRORS if name in each}
                for each in errors
                if isinstance(each, dict)
            ]
        return checked

    def _walk(self, value: Any, selection: FieldSelection, within: Repository | None) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, list):
            self._count(len(value))
            walked = (self._walk(each, selection, within) for each in value)
            return [each for each in walked if each is not _FOREIGN]
        return self._object(value, selection, within)

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            why = f"more than {MAX_LOOKED_AT} fields of the answer are to be checked; ask for fewer"
            raise ResponseUnfit(Reason.GRAPHQL, why)

    def _object(self, value: Any, selection: FieldSelection, within: Repository | None) -> Any:  # noqa: ANN401 - JSON
        if not isinstance(value, dict):
            return None
        name, said = selection.type.name, value.pop(TYPE, None)
        if not isinstance(selection.type, GraphQLObjectType):
            if not isinstance(said, str):
                return _FOREIGN  # it was asked for, and nothing else tells what this is
            name = said
        if self._table.scope(name) is not None:
            within = self._repository(value)
            if within is None:
                return _FOREIGN
        branches = self._branches(value) if HEAD in value else None
        looked_at = selection.read_of(name)
        self._count(len(looked_at))
        for key, each in looked_at:
            if each.is_closed:
                value[key] = None
            elif each.below is None:
                self._ids.learn(value.get(key), LearntNode(name, within, branches))
            else:
                walked = self._walk(value.get(key), each.below, within)
                if walked is _FOREIGN:
                    if selection.type.name.endswith("Edge"):
                        return _FOREIGN
                    walked = None
                value[key] = walked
        return value

    def _repository(self, value: dict[str, Any]) -> Repository | None:
        """The repository that an object names as its own; None if that is not granted."""
        own, outer = value.pop(NAME, None), value.pop(WITHIN, None)
        name = outer.get(NAME) if isinstance(outer, dict) else own
        if not isinstance(name, str):
            return None
        if name not in self._names:
            found = Repository.from_segments(Forge.GITHUB, tuple(name.split("/")))
            self._names[name] = found if found in self._granted else None
        return self._names[name]

    def _branches(self, value: dict[str, Any]) -> Branches | None:
        head, base = value.pop(HEAD, None), value.pop(BASE, None)
        crosses = value.pop(CROSSES, True)
        if not (isinstance(head, str) and isinstance(base, str)):
            return None
        if self._generation != self._ids.generation:
            return None
        return Branches(head, base, crosses is not False)


def answer_of(checked: dict[str, Any], absent: tuple[Absent, ...]) -> dict[str, Any]:
    """An answer, with an error for each field that is answered as missing."""
    if not absent:
        return checked
    data = checked.get("data") or {}
    errors = list(checked.get("errors", []))
    for each in absent:
        data[each.key] = None
        errors.append(
            {
                "type": "NOT_FOUND",
                "path": [each.key],
                "message": f"Could not resolve to {each.what}.",
            }
        )
    return {"data": data, "errors": errors}
