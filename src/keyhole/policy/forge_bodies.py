"""The judge of a forge's bodies: GraphQL, and REST requests whose body decides what they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.glob import ANY_DEPTH
from keyhole.model.repository import Forge
from keyhole.policy.body import BodyJudge
from keyhole.policy.forge import find_granted, find_resource, is_graphql
from keyhole.policy.forge_project import judge_project
from keyhole.policy.forge_search import is_search, judge_search
from keyhole.policy.forge_writes import MOVING, find_write, judge_write

if TYPE_CHECKING:
    from keyhole.model.decision import RequestDecision
    from keyhole.model.path import RequestPath
    from keyhole.policy.body import BodyFacts, BodyJudgement
    from keyhole.policy.forge_project import ProjectNumbers
    from keyhole.policy.graphql.judge import GraphqlJudge
    from keyhole.policy.policy import GitGrant, Service, ServiceHost

MAX_BODY = 1 << 20
"""Bytes of a body: the longest text of an issue has 256 KiB, of a note 1 MB."""


class ForgeBodies(BodyJudge):
    """Judges requests to a forge that method and path do not fully describe."""

    most = MAX_BODY
    reads_answers = True
    needs_type = True

    def __init__(self, service: Service, git: GitGrant) -> None:
        super().__init__()
        self._service = service
        self._git = git
        self._graphql: GraphqlJudge | None = None
        self._numbers: ProjectNumbers = {}
        own = (f"{service.rule}.allow[", f"{service.rule}.allow_also[")
        self._named = frozenset(
            ranked.id
            for host in service.hosts
            for ranked in host.rules
            if ranked.id.startswith(own) and ANY_DEPTH not in ranked.rule.path.segments
        )
        """Rules of the policy that name an endpoint."""

    def wants(
        self, host: ServiceHost, word: str, path: RequestPath, decision: RequestDecision
    ) -> bool:
        """As `BodyJudge`. If a rule of the policy names an endpoint, its bodies are not judged. A
        rule with `**` names none: it would also open pull requests from forks."""
        if decision.rule in self._named:
            return False
        if self._is_github and (is_graphql(path) or is_search(path)):
            return True
        return self._is_project(word, path) or self._endpoint(word, path) is not None

    def judge(self, facts: BodyFacts) -> BodyJudgement:
        """As `BodyJudge`."""
        if self._is_github and is_search(facts.path):
            return judge_search(self._git, facts)
        if self._is_project(facts.word, facts.path):
            return judge_project(self._git, self._numbers, facts)
        endpoint = self._endpoint(facts.word, facts.path)
        if endpoint is not None:
            if self._graphql is not None and endpoint in MOVING:
                # This may change a pull request's branches, by which a later merge is judged.
                self._graphql.ids.forget_branches()
            repository = find_granted(self._git, facts.path)
            own = self._numbers.get(repository) if repository is not None else None
            return judge_write(self._service, self._git.forge, endpoint, facts, own)
        if self._graphql is None:
            from keyhole.policy.graphql.judge import GraphqlJudge

            self._graphql = GraphqlJudge(self._service, self._git)
        return self._graphql.judge(facts)

    @property
    def _is_github(self) -> bool:
        return self._git.forge is Forge.GITHUB

    def _is_project(self, word: str, path: RequestPath) -> bool:
        """Whether it reads the page of a granted project of GitLab."""
        is_page = self._git.forge is Forge.GITLAB and word in ("GET", "HEAD")
        return is_page and find_resource(self._git, path) == ()

    def _endpoint(self, word: str, path: RequestPath) -> str | None:
        return find_write(self._git.forge, word, find_resource(self._git, path))
