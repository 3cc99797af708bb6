"""Which requests to a forge have their body judged."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.explain import Explanation, explain
from keyhole.policy.judges import make_judge
from keyhole.policy.load import PolicyText, load
from keyhole.policy.rulebook import Rulebook
from keyhole.policy.target import parse_target
from tests.rigs.git.judged import ALLOWED, WORLD, github_service
from tests.rigs.policies import loaded


def test_graphql_is_judged_unless_the_policy_opens_it_by_name() -> None:
    service = github_service('allow_also = ["POST /graphql", "POST /**"]')
    judge = make_judge(service)
    assert judge is not None
    named, broad = (
        RequestDecision(Verdict.ALLOW, Reason.RULE, f"services.hub.allow_also[{i}]", "hub")
        for i in range(2)
    )
    for path, decision, judged in (
        ("/graphql", ALLOWED, True),
        ("/api/graphql", ALLOWED, True),
        ("/graphql", named, False),
        ("/graphql", broad, True),
        ("/repos/acme/widgets/pulls", broad, True),
        ("/repos/acme/widgets", ALLOWED, False),
    ):
        found = judge.wants(service.hosts[0], "POST", RequestPath.parse(path), decision)
        assert found is judged


@pytest.mark.parametrize(
    "text", ["[services.model]", '[services.git]\nforge = "gitea"\nhosts = ["git.example"]']
)
def test_a_service_of_another_kind_has_no_such_judge(text: str) -> None:
    (service,) = loaded(f'{text}\nsecret = "store:x"\n').policy.services
    assert make_judge(service) is None


PULL = b'{"title": "t", "head": "%s", "base": "main"}'
LEVEL = 'secret = "store:x"\npush = ["agent/*"]\napi = "pull-requests"'


def why(more: str, words: str, body: bytes | None = None) -> Explanation:
    lines = f'version = 1\n[services.github]\nrepos = ["acme/widgets"]\n{LEVEL}\n{more}\n'
    policy = load(PolicyText("keyhole.toml", lines.encode()), None, WORLD).policy
    return explain(Rulebook(policy), parse_target((words,), "GET"), body=body)


@pytest.mark.parametrize("rule", ["POST /**", "POST /repos/acme/widgets/**", "* /repos/**"])
def test_a_broad_rule_does_not_open_a_pull_request_from_a_fork_i3(rule: str) -> None:
    """Attack: a branch of a fork, whose files `deny_paths` never saw."""
    pulls = "POST https://api.github.com/repos/acme/widgets/pulls"
    broad = f'allow_also = ["{rule}"]'
    assert not why(broad, pulls, PULL % b"eve:main").decision.allowed
    assert why(broad, pulls, PULL % b"agent/x").decision.allowed
    by_name = 'allow_also = ["POST /repos/acme/widgets/pulls"]'
    assert why(by_name, pulls, PULL % b"eve:main").decision.allowed


def test_why_judges_a_search_by_its_address() -> None:
    search = "https://api.github.com/search/issues?q=repo:acme/"
    assert why("", f"{search}widgets").decision.allowed
    there = why("", f"{search}vault")
    assert (there.decision.allowed, there.decision.reason) == (False, Reason.REPOSITORY_NOT_GRANTED)
