"""The judge of a forge's bodies: its GraphQL, and REST where a body decides, under one grant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.repository import Forge
from keyhole.policy.body import BodyJudge
from keyhole.policy.forge import find_resource, is_graphql
from keyhole.policy.forge_writes import MOVING, find_write, judge_write

if TYPE_CHECKING:
    from keyhole.model.decision import RequestDecision
    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts, BodyJudgement
    from keyhole.policy.graphql.judge import GraphqlJudge
    from keyhole.policy.policy import GitGrant, Service, ServiceHost

MAX_BODY = 1 << 20
"""Bytes of a body: the longest text of an issue has 256 KiB, of a note 1 MB."""


class ForgeBodies(BodyJudge):
    """Judges what a method and a path of a forge do not say."""

    most = MAX_BODY
    reads_answers = True

    def __init__(self, service: Service, git: GitGrant) -> None:
        super().__init__()
        self._service = service
        self._git = git
        self._graphql: GraphqlJudge | None = None

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """As `BodyJudge`. A rule of the policy that names an endpoint opens it whole."""
        if decision.rule.startswith(f"{self._service.rule}.allow"):
            return False
        return self._judges_graphql(path) or self._endpoint(word, path) is not None

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`."""
        endpoint = self._endpoint(facts.word, facts.path)
        if endpoint is not None:
            if self._graphql is not None and endpoint in MOVING:
                # A merge is judged by the branches that were read before.
                self._graphql.ids.forget_branches()
            return judge_write(self._service, self._git.forge, endpoint, facts)
        if self._graphql is None:
            from keyhole.policy.graphql.judge import GraphqlJudge

            self._graphql = GraphqlJudge(self._service, self._git)
        return self._graphql.judge(facts)

    def _judges_graphql(self, path: RequestPath) -> bool:
        return self._git.forge is Forge.GITHUB and is_graphql(path)

    def _endpoint(self, word: str, path: RequestPath) -> str | None:
        return find_write(self._git.forge, word, find_resource(self._git, path))
