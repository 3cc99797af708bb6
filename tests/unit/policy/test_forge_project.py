"""The page of a GitLab project is shown without what leads out of it or opens it (I3)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import ResponseUnfit
from keyhole.model.path import RequestPath
from keyhole.policy.body import EMPTY, BodyFacts, BodyJudge, BodyJudgement
from keyhole.policy.forge_project import ProjectAnswer
from keyhole.policy.judges import make_judge
from tests.rigs.git.judged import forge_service

if TYPE_CHECKING:
    from keyhole.wire.strict_json import JsonValue

MORE = 'api = "pull-requests"\npush = ["agent/*"]\nallow_also = ["GET /**"]'
SERVICE = forge_service("gitlab", MORE, '"acme/widgets", "acme/docs"')
WIDGETS, DOCS = ("/api/v4/projects/acme%2Fwidgets", "/api/v4/projects/acme%2Fdocs")
PAGE = {
    "id": 7,
    "name": "widgets",
    "path_with_namespace": "acme/widgets",
    "default_branch": "main",
    "runners_token": "GR-secret",
    "import_url": "https://ann:secret@elsewhere.example/x.git",
    "forked_from_project": {"path_with_namespace": "acme/vault"},
    "shared_with_groups": [{"group_name": "vault"}],
    "namespace": {"full_path": "acme", "avatar_url": "secret"},
    "permissions": {"project_access": {"access_level": 40}, "vault": 1},
}


def new_judge() -> BodyJudge:
    judge = make_judge(SERVICE)
    assert judge is not None
    return judge


def ask(
    judge: BodyJudge,
    word: str,
    path: str,
    body: JsonValue = None,
    rule: str = "catalogue.x",
) -> BodyJudgement | None:
    found, host = RequestPath.parse(path, opaque_slash=True), SERVICE.hosts[0]
    decision = RequestDecision(Verdict.ALLOW, Reason.RULE, rule, "hub")
    if not judge.wants(host, word, found, decision):
        return None
    return judge.judge(
        BodyFacts(host, word, found, decision, json=body, flaw=EMPTY if body is None else "")
    )


def read(judge: BodyJudge, page: object, path: str = WIDGETS) -> str:
    said = ask(judge, "GET", path)
    assert said is not None
    assert isinstance(said.reader, ProjectAnswer)
    assert said.reader.begin(200, {})
    data = page if isinstance(page, bytes) else json.dumps(page).encode()
    assert said.reader.feed(data) == b""
    return said.reader.end().decode()


def test_a_page_shows_no_token_and_no_other_project_i1() -> None:
    shown = read(new_judge(), PAGE)
    assert json.loads(shown) == {
        "id": 7,
        "name": "widgets",
        "path_with_namespace": "acme/widgets",
        "default_branch": "main",
        "namespace": {"full_path": "acme"},
        "permissions": {"project_access": {"access_level": 40}},
    }
    assert "secret" not in shown
    assert "vault" not in shown


def test_a_page_without_its_usual_parts_is_shown_too() -> None:
    page = {"id": "7", "path_with_namespace": "Acme/Widgets", "namespace": None}
    assert json.loads(read(new_judge(), page)) == {"id": "7", "path_with_namespace": "Acme/Widgets"}


@pytest.mark.parametrize(
    "page",
    [
        {**PAGE, "path_with_namespace": "acme/vault"},
        {**PAGE, "path_with_namespace": "acme"},
        {"id": 7},
        [PAGE],
        b"<html>",
        b'{"a": 1, "a": 2}',
    ],
)
def test_what_is_not_a_granted_project_is_not_shown_i3(page: object) -> None:
    """A project that was moved is answered under its old name. The controls are above."""
    with pytest.raises(ResponseUnfit):
        read(new_judge(), page)


def test_an_error_of_the_forge_passes() -> None:
    said = ask(new_judge(), "GET", WIDGETS)
    assert said is not None
    assert said.reader is not None
    assert not said.reader.begin(404, {})
    assert said.reader.begin(206, {}), "a range would pass unread"


def test_only_the_page_itself_is_filtered_also_under_a_broad_rule() -> None:
    judge = new_judge()
    assert ask(judge, "GET", WIDGETS, rule="services.hub.allow_also[0]") is not None
    assert ask(judge, "HEAD", "/api/v4/projects/acme/widgets") is not None
    assert ask(judge, "GET", f"{WIDGETS}/issues") is None
    assert ask(judge, "GET", "/api/v4/projects/7") is None


def test_a_merge_request_goes_to_the_same_project_by_its_number_i3() -> None:
    """Attack: `target_project_id` of another project, also of one that is granted."""
    judge = new_judge()
    body: dict[str, JsonValue] = {"title": "t", "source_branch": "agent/x", "target_branch": "main"}

    def opens(number: JsonValue, path: str = WIDGETS) -> bool:
        into: dict[str, JsonValue] = {**body, "target_project_id": number}
        said = ask(judge, "POST", f"{path}/merge_requests", into)
        assert said is not None
        return said.allowed

    assert not opens(7)  # nobody has said yet which project that is
    read(judge, PAGE)
    read(judge, {**PAGE, "id": 8, "path_with_namespace": "acme/docs"}, DOCS)
    assert opens(7)
    assert opens(8, DOCS)
    others: list[JsonValue] = [8, 9, "7", 7.0, True, None, [7]]
    for number in others:
        assert not opens(number)
    other = make_judge(SERVICE)
    assert other is not None
    said = ask(other, "POST", f"{WIDGETS}/merge_requests", {**body, "target_project_id": 7})
    assert said is not None
    assert not said.allowed
