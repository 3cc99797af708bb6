"""A search by REST stays within one granted repository, and so do its results (I3)."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote_plus

import pytest

from keyhole.model.decision import Reason
from keyhole.model.errors import ResponseUnfit
from keyhole.model.path import RequestPath
from keyhole.policy.body import EMPTY, BodyFacts, BodyJudgement
from keyhole.policy.collected_answer import MAX_ANSWER, MAX_OBJECTS
from keyhole.policy.forge_search import SearchAnswer
from keyhole.policy.judges import make_judge
from tests.rigs.git.endpoints import KINDS
from tests.rigs.git.judged import ALLOWED, github_service
from tests.unit.policy.test_forge_api import BROAD, book, decide

SERVICE = github_service()
ISSUES, CODE = "/search/issues", "/search/code"


def judged(query: str, path: str = ISSUES) -> BodyJudgement:
    judge = make_judge(SERVICE)
    assert judge is not None
    found, host = RequestPath.parse(path), SERVICE.hosts[0]
    assert judge.wants(host, "GET", found, ALLOWED)
    return judge.judge(BodyFacts(host, "GET", found, ALLOWED, query, flaw=EMPTY))


def asked(text: str, more: str = "") -> BodyJudgement:
    return judged(f"page=1&per_page=30&q={quote_plus(text)}{more}")


@pytest.mark.parametrize(
    "text",
    [
        "crash repo:acme/widgets type:issue",
        "repo:Acme/Widgets is:open label:bug",
        "repo:acme/widgets",
        '"two words" repo:acme/widgets type:pr state:open',
        "needle repo:acme/widgets extension:py path:src",
    ],
)
def test_a_search_in_a_granted_repository_is_sent(text: str) -> None:
    for path in (ISSUES, CODE, f"/api/v3{ISSUES}"):
        said = judged(f"q={quote_plus(text)}&sort=created&order=desc", path)
        assert said.allowed, said
        assert said.reader is not None


@pytest.mark.parametrize(
    "text",
    [
        "crash",
        "",
        "repo:acme/vault",
        "repo:acme/widgets repo:acme/vault",
        "repo:acme/widgets OR repo:acme/vault",
        "repo:acme/widgets OR crash",
        "(repo:acme/widgets) OR (repo:acme/vault)",
        "NOT repo:acme/widgets",
        "-repo:acme/widgets",
        "repo:acme/widgets org:acme",
        "repo:acme/widgets user:acme",
        "repo:acme/*",
        'repo:"acme/widgets repo:acme/vault"',
        "repo:acme/widgets\u2003repo:acme/vault",
        "repo:acme/widgets,acme/vault",
        "REPO:acme/vault repo:acme/widgets",
    ],
)
def test_a_search_elsewhere_is_refused(text: str) -> None:
    """I3; the control is the test above."""
    assert not asked(text).allowed


@pytest.mark.parametrize(
    "query",
    [
        "q=repo%3Aacme%2Fwidgets&q=repo%3Aacme%2Fvault",
        "q=repo%3Aacme%2Fwidgets&Q=repo%3Aacme%2Fvault",
        "q=repo%3Aacme%2Fwidgets&%71=repo%3Aacme%2Fvault",
        "q=repo%3Aacme%2Fwidgets;q=repo%3Aacme%2Fvault",
        "q[]=repo%3Aacme%2Fwidgets",
        "q=repo%3Aacme%2Fwidgets&scope=all",
        "q=%ff",
        "q=a b",
    ],
)
def test_an_address_that_servers_read_differently_is_refused(query: str) -> None:
    """I3: not guessed."""
    said = judged(query)
    assert said.decision.reason in (Reason.FEATURE_CLOSED, Reason.GRAPHQL)
    assert said.why


@pytest.mark.parametrize("name", ["github", "github-enterprise", "ghe-cloud"])
def test_a_search_is_judged_also_under_a_broad_allow(name: str) -> None:
    """I3: a policy that allows everything does not open it, and other searches are guarded."""
    kind = KINDS[name]
    for level in ("off", "read"):
        rules = book(name, f'api = "{level}"', BROAD)
        said = decide(rules, kind.host, "GET", f"{kind.root}{ISSUES}", "q=x")
        assert said.allowed is (level == "read")
        (service,) = rules.policy.services
        judge = make_judge(service)
        assert judge is not None
        path = RequestPath.parse(f"{kind.root}{ISSUES}")
        assert not said.allowed or judge.wants(service.hosts[0], "GET", path, said)
        other = decide(rules, kind.host, "GET", f"{kind.root}/search/users", "q=x")
        assert other.reason is Reason.GUARDED_ENDPOINT


def of(name: str) -> dict[str, Any]:
    return {"title": name, "repository_url": f"https://api.github.com/repos/{name}"}


def told(answer: object) -> dict[str, Any]:
    git = SERVICE.git
    assert git is not None
    reader = SearchAnswer(git)
    assert not reader.begin(422, {})
    assert reader.begin(206, {}), "a range would pass unread"
    assert reader.begin(200, {})
    assert reader.feed(json.dumps(answer).encode()) == b""
    found: dict[str, Any] = json.loads(reader.end())
    return found


def test_results_of_other_repositories_are_left_out() -> None:
    ours, code = of("Acme/Widgets"), {"repository": {"full_name": "acme/widgets"}, "path": "x"}
    assert told({"total_count": 70, "items": [ours, code]}) == {
        "total_count": 70, "incomplete_results": False, "items": [ours, code],
    }  # fmt: skip
    mixed = {**of("acme/widgets"), "repository": {"full_name": "acme/vault"}}
    items = [ours, of("acme/vault"), {"title": "none"}, "text", mixed, of("acme/widgets/vault")]
    assert told({"total_count": 70, "items": items})["items"] == [ours]
    assert told({"total_count": 70, "items": items})["total_count"] == 1
    assert told({"items": []})["total_count"] == 0


@pytest.mark.parametrize("answer", [[], {"items": 1}, {"a": [{}] * (MAX_OBJECTS + 1)}])
def test_an_answer_that_is_none_of_a_search_is_cut(answer: object) -> None:
    with pytest.raises(ResponseUnfit):
        told(answer)


def test_an_answer_is_bounded() -> None:
    """I9."""
    git = SERVICE.git
    assert git is not None
    with pytest.raises(ResponseUnfit):
        SearchAnswer(git).feed(b"x" * (MAX_ANSWER + 1))
