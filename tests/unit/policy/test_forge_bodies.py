"""Which requests to a forge have their body judged."""

from __future__ import annotations

import pytest

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.judges import make_judge
from tests.rigs.git.judged import ALLOWED, github_service
from tests.rigs.policies import loaded


def test_graphql_is_judged_unless_the_policy_opens_it_by_name() -> None:
    service = github_service()
    judge = make_judge(service)
    assert judge is not None
    by_name = RequestDecision(Verdict.ALLOW, Reason.RULE, "services.hub.allow[0]", "hub")
    for path, decision, judged in (
        ("/graphql", ALLOWED, True),
        ("/api/graphql", ALLOWED, True),
        ("/graphql", by_name, False),
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
