"""What passes of a forge's answer (I3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyhole.model.errors import ResponseUnfit
from keyhole.policy.collected_answer import MAX_ANSWER, MAX_OBJECTS
from keyhole.policy.graphql.answer import MAX_LOOKED_AT
from tests.rigs.git.github import SECRET
from tests.rigs.git.github_escapes import WIDGETS
from tests.rigs.git.judged import JudgedForge

QUERY = f"{{ {WIDGETS} {{ id issue(number:1) {{ id title parent {{ title }} }} }} }}"


def read(answer: object, status: int = 200, query: str = QUERY) -> Any:  # noqa: ANN401 - JSON
    behind = JudgedForge()
    said = behind.judge.judge(behind.facts(b"", json={"query": query}, flaw=""))
    assert said.reader is not None
    said.reader.begin(status, {})
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return json.loads(said.reader.feed(data) + said.reader.end())


def repository(name: str | None, **more: object) -> dict[str, Any]:
    return {"data": {"repository": {"keyhole_name": name, "id": "R_1", "issue": None, **more}}}


def test_an_answer_about_another_repository_is_not_passed() -> None:
    """I3: a renamed one, or a forge that answers something else. The control is the first."""
    assert read(repository("Acme/Widgets")) == {
        "data": {"repository": {"id": "R_1", "issue": None}}
    }
    for name in ("acme/vault", None, "acme", 3):
        assert read(repository(name)) == {"data": {"repository": None}}  # type: ignore[arg-type]


def test_an_issue_that_was_moved_away_is_not_passed() -> None:
    issue = {
        "id": "I_1",
        "title": "t",
        "keyhole_in": {"keyhole_name": "acme/vault"},
        "parent": None,
    }
    assert read(repository("acme/widgets", issue=issue))["data"]["repository"]["issue"] is None
    issue["keyhole_in"] = {"keyhole_name": "acme/widgets"}
    passed = read(repository("acme/widgets", issue=issue))["data"]["repository"]["issue"]
    assert passed == {"id": "I_1", "title": "t", "parent": None}


def test_a_pull_request_whose_branches_are_no_texts_passes_without_them() -> None:
    """Its id is then worth nothing for a merge."""
    query = f"{{ {WIDGETS} {{ id pullRequest(number:1) {{ id title }} }} }}"
    pull = {
        "id": "PR_1",
        "title": "t",
        "keyhole_in": {"keyhole_name": "acme/widgets"},
        "keyhole_head": 7,
        "keyhole_base": "main",
        "keyhole_crosses": False,
    }
    found = {"data": {"repository": {"keyhole_name": "acme/widgets", "id": "R_1"}}}
    found["data"]["repository"]["pullRequest"] = pull  # type: ignore[assignment]
    passed = read(found, query=query)["data"]["repository"]["pullRequest"]
    assert passed == {"id": "PR_1", "title": "t"}


def test_errors_pass_without_what_else_is_in_them() -> None:
    error = {
        "message": "m",
        "type": "T",
        "path": ["a"],
        "extensions": {"x": SECRET},
        "locations": [],
    }
    said = {"data": None, "errors": [error, 3], "extensions": {"x": SECRET}}
    passed = {"data": None, "errors": [{"message": "m", "type": "T", "path": ["a"]}]}
    assert read(said) == passed


def test_an_error_of_the_forge_passes_as_it_is() -> None:
    assert read({"message": "Bad credentials"}, 401) == {"message": "Bad credentials"}
    assert read({"errors": [{"message": "m"}]}) == {"errors": [{"message": "m"}]}


@pytest.mark.parametrize("data", [b"<html>", b"[1]", b"{}", b"3", b""])
def test_an_answer_that_is_not_graphqls_is_refused(data: bytes) -> None:
    with pytest.raises(ResponseUnfit, match="not GraphQL"):
        read(data)


def test_an_answer_is_bounded() -> None:
    """I9."""
    with pytest.raises(ResponseUnfit, match="more than"):
        read(b" " * (MAX_ANSWER + 1))
    with pytest.raises(ResponseUnfit, match="objects"):
        read(b"{" * (MAX_OBJECTS + 1))
    with pytest.raises(ResponseUnfit, match="too deeply"):
        read(b'{"data": {"repository": %b%b}}' % (b"[" * 500, b"]" * 500))
    with pytest.raises(ResponseUnfit, match="to be checked"):
        read({"data": {"repository": [None] * (MAX_LOOKED_AT + 1)}})


def test_values_of_another_shape_become_null() -> None:
    assert read({"data": {"repository": [3, None]}}) == {"data": {"repository": [None, None]}}
    assert read({"data": 3}) == {"data": None}


def test_an_object_that_does_not_tell_its_type_is_not_passed() -> None:
    """I3: its fields could be of any. The control: one that does."""
    query = f"{{ {WIDGETS} {{ issueOrPullRequest(number:1) {{ ... on Issue {{ title }} }} }} }}"
    inner: dict[str, Any] = {"title": "t", "keyhole_in": {"keyhole_name": "acme/widgets"}}
    for kind, passed in ((None, None), ({}, None), ("Issue", {"title": "t"})):
        found = {
            "keyhole_name": "acme/widgets",
            "issueOrPullRequest": {**inner, "keyhole_type": kind},
        }
        read_one = read({"data": {"repository": found}}, query=query)
        assert read_one["data"]["repository"]["issueOrPullRequest"] == passed


def test_results_of_a_search_elsewhere_are_left_out() -> None:
    """I3: also as edges, and those of a type that is not in the table."""
    behind = JudgedForge()
    told = behind.ask(
        '{ search(query:"repo:acme/widgets",type:ISSUE,first:9) '
        "{ nodes { __typename ... on Issue { title } } edges { node { ... on Issue { id } } } } }"
    )
    found = told.answer["data"]["search"]
    assert [each["__typename"] for each in found["nodes"]] == [
        "Issue",
        "PullRequest",
        "PullRequest",
    ]
    assert len(found["edges"]) == 3
    odd = read(
        {"data": {"node": {"keyhole_type": "Unheard", "id": "x"}}},
        query=f"{{ {WIDGETS} {{ owner {{ login }} }} }}",
    )
    assert odd == {"data": {"node": {"keyhole_type": "Unheard", "id": "x"}, "repository": None}}
