"""Bodies of forges' REST that write: what each field may be (I3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.body import NOT_JSON, BodyFacts, BodyJudgement, find_flaw
from keyhole.policy.forge import find_resource
from keyhole.policy.forge_writes import FieldUse
from keyhole.policy.judges import make_judge
from tests.rigs.git.judged import forge_service
from tests.rigs.models.requests import model_service

if TYPE_CHECKING:
    from keyhole.policy.policy import Service

ALLOWED = RequestDecision(Verdict.ALLOW, Reason.RULE, "catalogue.x.host[0].api_write[0]", "forge")
HUB, LAB = "/repos/acme/widgets", "/api/v4/projects/acme%2Fwidgets"
SERVICES = {
    name: forge_service(name, 'api = "pull-requests"\npush = ["agent/*"]')
    for name in ("github", "gitlab")
}


def judge(
    name: str | Service,
    word: str,
    path: str,
    body: object,
    **more: Any,  # noqa: ANN401 - of BodyFacts
) -> BodyJudgement | None:
    """None where the body is not judged."""
    service = SERVICES[name] if isinstance(name, str) else name
    found = make_judge(service)
    assert found is not None
    parsed = RequestPath.parse(path, opaque_slash=True)
    if not found.wants(service.hosts[0], word, parsed, ALLOWED):
        return None
    given: dict[str, Any] = {"json": body, "flaw": ""} | more
    return found.judge(BodyFacts(service.hosts[0], word, parsed, ALLOWED, **given))


PULL = {"title": "t", "head": "agent/x", "base": "main"}
MERGE = {"title": "t", "source_branch": "agent/x", "target_branch": "main"}
Row = tuple[str, str, str, dict[str, Any]]

OPEN: list[Row] = [
    ("github", "POST", f"{HUB}/pulls", {**PULL, "body": "b\n/merge", "draft": True}),
    ("github", "PATCH", f"{HUB}/pulls/1", {"title": "t", "state": "closed", "base": "next"}),
    ("github", "POST", f"{HUB}/pulls/1/reviews", {"event": "COMMENT", "body": "b"}),
    ("github", "POST", f"{HUB}/pulls/1/reviews", {"event": "REQUEST_CHANGES", "comments": []}),
    ("github", "POST", f"{HUB}/issues", {"title": "t", "assignees": ["ann"]}),
    ("github", "PATCH", f"{HUB}/issues/1", {"state": "closed", "state_reason": "not_planned"}),
    ("github", "POST", "/Repos/Acme/Widgets/pulls", PULL),
    ("gitlab", "POST", f"{LAB}/merge_requests", {**MERGE, "description": "see a/b and 1/2"}),
    ("gitlab", "POST", f"{LAB}/merge_requests", {**MERGE, "labels": ""}),
    ("gitlab", "POST", f"{LAB}/issues", {"title": "t", "labels": []}),
    ("gitlab", "PUT", f"{LAB}/merge_requests/1", {"state_event": "close"}),
    ("gitlab", "POST", f"{LAB}/merge_requests/1/notes", {"body": "seen"}),
    ("gitlab", "POST", f"{LAB}/issues", {"title": "t", "description": "d"}),
    ("gitlab", "PUT", f"{LAB}/issues/1", {"title": "t"}),
    ("gitlab", "POST", f"{LAB}/issues/1/notes", {"body": "seen"}),
    ("gitlab", "POST", "/api/v4/projects/acme/widgets/issues/1/notes", {"body": "seen"}),
]

CLOSED: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("github", "POST", f"{HUB}/pulls", {**PULL, "head": "theirs"}, "'push' grants"),
    ("github", "POST", f"{HUB}/pulls", {**PULL, "head": "eve:agent/x"}, "not a plain branch"),
    ("github", "POST", f"{HUB}/pulls", {**PULL, "head_repo": "eve/widgets"}, "'head_repo'"),
    ("github", "POST", f"{HUB}/pulls", {**PULL, "issue": 1}, "'issue'"),
    ("github", "POST", f"{HUB}/pulls", {"issue": 1}, "'head' is needed"),
    ("github", "POST", f"{HUB}/pulls", {**PULL, "head": 3}, "not a text"),
    ("github", "PATCH", f"{HUB}/pulls/1", {"base": "eve:main"}, "not a plain branch"),
    ("github", "PATCH", f"{HUB}/pulls/1", {"labels": ["x"]}, "'labels'"),
    ("github", "POST", f"{HUB}/pulls/1/reviews", {"event": "APPROVE"}, "may not approve"),
    ("github", "POST", f"{HUB}/pulls/1/reviews", {"event": "approve"}, "may not approve"),
    ("github", "POST", f"{HUB}/pulls/1/reviews", {"body": "b"}, "'event' is needed"),
    ("github", "POST", f"{HUB}/issues", {"title": "t", "labels": ["safe to test"]}, "'labels'"),
    ("github", "PATCH", f"{HUB}/issues/1", {"labels": []}, "'labels'"),
    (
        "gitlab",
        "POST",
        f"{LAB}/merge_requests",
        {**MERGE, "target_project_id": 42},
        "target_project",
    ),
    ("gitlab", "POST", f"{LAB}/merge_requests", {**MERGE, "labels": "x"}, "'labels'"),
    ("gitlab", "PUT", f"{LAB}/merge_requests/1", {"labels": ""}, "'labels'"),
    ("gitlab", "POST", f"{LAB}/issues", {"title": "t", "labels": ["x"]}, "'labels'"),
    ("gitlab", "POST", f"{LAB}/merge_requests", {**MERGE, "sudo": "root"}, "'sudo'"),
    (
        "gitlab",
        "POST",
        f"{LAB}/merge_requests",
        {**MERGE, "source_branch": "main"},
        "'push' grants",
    ),
    ("gitlab", "POST", f"{LAB}/merge_requests", {"title": "t"}, "'source_branch' is needed"),
    ("gitlab", "POST", f"{LAB}/merge_requests", {**MERGE, "description": "/merge"}, "a command"),
    (
        "gitlab",
        "POST",
        f"{LAB}/merge_requests",
        {**MERGE, "description": "x\n/approve"},
        "a command",
    ),
    ("gitlab", "PUT", f"{LAB}/merge_requests/1", {"description": "x\r/merge"}, "a command"),
    ("gitlab", "PUT", f"{LAB}/merge_requests/1", {"add_labels": "x"}, "'add_labels'"),
    ("gitlab", "POST", f"{LAB}/merge_requests/1/notes", {"body": "x\u2028 /merge"}, "a command"),
    ("gitlab", "POST", f"{LAB}/merge_requests/1/notes", {"body": "> /merge"}, "a command"),
    ("gitlab", "POST", f"{LAB}/issues/1/notes", {"body": "\t/move acme/vault"}, "a command"),
    ("gitlab", "POST", f"{LAB}/issues/1/notes", {"body": ["/merge"]}, "not a text"),
]


@pytest.mark.parametrize(("name", "word", "path", "body"), OPEN)
def test_a_body_within_the_grant_passes_as_it_is(
    name: str, word: str, path: str, body: dict[str, Any]
) -> None:
    said = judge(name, word, path, body)
    assert said is not None
    assert said.allowed
    assert said.body is None


@pytest.mark.parametrize(("name", "word", "path", "body", "why"), CLOSED)
def test_a_body_beyond_the_grant_is_refused_in_words(
    name: str, word: str, path: str, body: dict[str, Any], why: str
) -> None:
    """I3. The controls are above."""
    said = judge(name, word, path, body)
    assert said is not None
    assert not said.allowed
    assert why in said.why


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_what_cannot_be_read_is_refused(name: str) -> None:
    """I9: a form, a list, and fields in the address, which forges read as if in the body."""
    path = f"{HUB}/issues" if name == "github" else f"{LAB}/issues"
    for body, more, why in (
        ({"title": "t"}, {"flaw": "its type is not application/json"}, "cannot be judged"),
        ([], {}, "cannot be judged"),
        ({"title": "t"}, {"query": "labels=x"}, "in the address"),
    ):
        said = judge(name, "POST", path, body, **more)
        assert said is not None
        assert not said.allowed
        assert why in said.why


@pytest.mark.parametrize("name", ["github", "gitlab", "anthropic"])
def test_a_body_for_a_forge_says_that_it_is_json(name: str) -> None:
    """I3. Attack: a server on Rack reads a POST without a type as a form, and finds
    `&target_project_id=2&` in the middle of a text. The controls are the type, and a model's
    service, whose clients may leave it out."""
    judge = make_judge(SERVICES.get(name) or model_service(name))
    assert judge is not None
    forge = name in SERVICES
    assert find_flaw({}, empty=False, typed=judge.needs_type) == (NOT_JSON if forge else "")
    assert not find_flaw({"content-type": "application/json"}, empty=False, typed=judge.needs_type)


def test_a_pull_request_is_not_moved_to_a_protected_branch_by_who_may_merge() -> None:
    """I3. Attack: move it there while the answer is under way that names its old branch, and merge
    it by that answer. The controls are another branch, and a grant that cannot merge."""
    for level, base, allowed in (
        ("merge", "release/1", False),
        ("merge", "Release/1", False),
        ("merge", "next", True),
        ("pull-requests", "release/1", True),
    ):
        more = f'api = "{level}"\npush = ["agent/*"]\nprotect = ["release/*"]'
        said = judge(forge_service("github", more), "PATCH", f"{HUB}/pulls/1", {"base": base})
        assert said is not None
        assert said.allowed is allowed
        assert allowed or said.decision.reason is Reason.REF_PROTECTED


@pytest.mark.parametrize(
    ("name", "word", "path"),
    [
        ("github", "POST", f"{HUB}/issues/1/comments"),
        ("github", "GET", f"{HUB}/issues"),
        ("github", "POST", "/user/repos"),
        ("gitlab", "POST", f"{LAB}/pipeline"),
        ("gitlab", "POST", "/api/graphql"),
        ("gitlab", "POST", "/api/v4/projects"),
    ],
)
def test_other_bodies_are_not_judged(name: str, word: str, path: str) -> None:
    assert judge(name, word, path, {}) is None


def test_a_resource_is_of_a_granted_repository() -> None:
    git = SERVICES["github"].git
    assert git is not None
    for path, found in (
        (f"{HUB}/pulls/1", ("pulls", "1")),
        ("/repos/acme/vault/pulls/1", None),
        ("/user", None),
    ):
        assert find_resource(git, RequestPath.parse(path)) == found


def test_closed_is_the_zero() -> None:
    """I3."""
    assert FieldUse(0) is FieldUse.CLOSED
