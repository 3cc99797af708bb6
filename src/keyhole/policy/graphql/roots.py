"""Judges the root fields of a query, and how many entries it may ask for.

Below a repository, the table has only fields that stay in it; so the root field decides (I3). A
repository or organisation that is not granted is answered as if it did not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason
from keyhole.model.repository import Forge, Repository
from keyhole.policy.graphql.refusal import refusal
from keyhole.policy.graphql.search_query import confine_search

if TYPE_CHECKING:
    from keyhole.model.errors import RequestUnfit
    from keyhole.policy.graphql.learnt_ids import LearntIds
    from keyhole.policy.graphql.selection import FieldSelection, Selected
    from keyhole.policy.graphql.table import Table
    from keyhole.policy.policy import GitGrant

MAX_PAGE = 100
"""Entries of one page, as GitHub bounds them."""

MAX_NODES = 500_000
"""Entries that an operation may ask for in all, as GitHub bounds them."""

MAX_NODE_IDS = 100
"""Ids in one `nodes`."""


class Absent(Struct, frozen=True):
    """A field at the root that is answered as missing."""

    key: str
    what: str


def judge_roots(
    table: Table, git: GitGrant, ids: LearntIds, tree: FieldSelection
) -> tuple[Absent, ...]:
    """Judge the root fields of a query, and remove those that are answered as missing. Raises
    RequestUnfit."""
    absent: list[Absent] = []
    for key, each in tree.fields.items():
        if each.field is None:
            continue
        if table.says("granted", each.field) is not None:
            owner, name = each.arguments["owner"], each.arguments["name"]
            found = Repository.from_segments(Forge.GITHUB, (owner, name))
            if found is None or found not in git.repos:
                absent.append(Absent(key, f"a Repository with the name '{owner}/{name}'"))
        elif table.says("absent", each.field) is not None:
            login = each.arguments["login"]
            absent.append(Absent(key, f"an Organization with the login of '{login}'"))
        elif table.says("learnt", each.field) is not None:
            _judge_ids(ids, each)
        elif table.says("within", each.field) is not None:
            each.arguments["query"] = confine_search(each.arguments["query"], git.repos)
    if _nodes(tree, 1) > MAX_NODES:
        raise refusal(f"it asks for more than {MAX_NODES} entries")
    for one in absent:
        del tree.fields[one.key]
    return tuple(absent)


def _judge_ids(ids: LearntIds, each: Selected) -> None:
    given = each.arguments["ids"] if "ids" in each.arguments else [each.arguments["id"]]
    if len(given) > MAX_NODE_IDS:
        raise refusal(f"it names more than {MAX_NODE_IDS} ids")
    for node_id in given:
        if ids.find(node_id) is None:
            raise unknown_id(node_id)


def unknown_id(node_id: object) -> RequestUnfit:
    """The refusal of an id."""
    why = (
        f"the id '{node_id}' is not from an answer that this session got about a granted repository"
    )
    return refusal(why, Reason.REPOSITORY_NOT_GRANTED)


def _nodes(selection: FieldSelection, times: int) -> int:
    """How many entries of lists an operation asks for, each page times the pages around it."""
    total = 0
    for part in (selection, *selection.cases.values()):
        for each in part.fields.values():
            if each.below is None:
                continue
            page = each.arguments.get("first") or each.arguments.get("last")
            if page is not None and not 0 <= page <= MAX_PAGE:
                raise refusal(f"a page has at most {MAX_PAGE} entries")
            inner = times * (page or 1)
            total += (inner if page else 0) + _nodes(each.below, inner)
    return total
