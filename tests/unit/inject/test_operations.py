"""Tables of operations in the catalogue are read with the place of each mistake."""

from __future__ import annotations

import pytest

from keyhole.inject.operations import MarkPlace, NamePlace, parse_operations
from keyhole.model.errors import Unparsable
from tests.rigs.inject.shelf import NAMES, service

TABLE = {
    "on": ["PUT /**"],
    "query": {"acl": ["acl"], "harmless": ["uploadId"]},
    "header": {"copy": ["x-copy*"], "upload": ["content-type=multipart/*"]},
}


def test_a_table_says_where_names_and_marks_stand() -> None:
    named, marked = parse_operations(
        "x", [{"on": ["* /"], "named": ["form:Action"], "guarded": ["*Key"]}, TABLE]
    )
    assert named.named == ((NamePlace.FORM, "Action"),)
    assert (named.reads_forms, named.reads_json, named.kinds) == (True, False, frozenset())
    assert marked.words == {"acl", "copy", "upload"}
    assert marked.kinds == {"query"}
    assert not marked.reads_forms
    query, header = marked.parts
    assert (query.place, query.harmless) == (MarkPlace.QUERY, ("uploadId",))
    assert (header.harmless, header.watched) == (None, ("*",))
    assert header.marks[1].names == (("content-type", "multipart/*"),)
    assert marked.guarded == named.guarded == ("*Key",)


def test_a_table_may_look_at_the_fields_of_a_body() -> None:
    (found,) = parse_operations("x", [{"on": ["POST /"], "field": {"token": ["token"]}}])
    assert (found.reads_forms, found.reads_json) == (True, True)
    (found,) = parse_operations("x", [{"on": ["POST /"], "named": ["graphql:query"]}])
    assert (found.reads_forms, found.reads_json) == (False, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"other": 1}, "unknown key 'other'"),
        ({"on": []}, "'on' says which requests"),
        ({"on": ["/x"]}, r"x\[0\].on\[0\]"),
        ({"named": ["body:Action"]}, "as in 'query:Action'"),
        ({"query": {"ACL": ["acl"]}}, "a word in lower case"),
        ({"query": ["acl"]}, "a table is expected"),
        ({"required": "yes"}, "true or false"),
    ],
)
def test_a_mistake_is_named_with_its_place(change: dict[str, object], said: str) -> None:
    with pytest.raises(Unparsable, match=said):
        parse_operations("x", [TABLE | change])
    with pytest.raises(Unparsable, match="'named' or a part"):
        parse_operations("x", [{"on": ["PUT /**"]}])


@pytest.mark.parametrize("name", NAMES)
def test_a_service_is_judged_in_one_way(name: str) -> None:
    """One judge serves a service: by its model's API, by operations, as a forge or as MCP."""
    found = service(name)
    ways = [
        any(host.judged for host in found.hosts),
        any(host.operations for host in found.hosts),
        found.forge is not None,
        bool(found.mcp),
    ]
    assert sum(ways) <= 1
