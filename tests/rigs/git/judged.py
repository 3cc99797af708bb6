"""A forge behind the judge of its GraphQL, without a gateway between."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.host import presets
from keyhole.host.suffixes import covered_suffix
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Malformed
from keyhole.model.path import RequestPath
from keyhole.policy.body import BodyFacts, BodyJudgement
from keyhole.policy.build import PolicyContext
from keyhole.policy.judges import make_judge
from keyhole.policy.load import PolicyText, load
from keyhole.wire.strict_json import read_json
from tests.rigs.git.github import GithubForge

if TYPE_CHECKING:
    from keyhole.policy.policy import Service

WORLD = PolicyContext(FileCatalogue(), covered_suffix, presets.NAMES)
ALLOWED = RequestDecision(Verdict.ALLOW, Reason.RULE, "catalogue.github.host[0].api_read[4]", "hub")
PATH = RequestPath.parse("/graphql")


def github_service(more: str = 'api = "read"', repos: str = '"acme/widgets"') -> Service:
    """A service by the catalogue's own entry."""
    return forge_service("github", more, repos)


def forge_service(use: str, more: str, repos: str = '"acme/widgets"') -> Service:
    """The same, of another forge."""
    lines = ("version = 1", "[services.hub]", f'use = "{use}"', f"repos = [{repos}]", more)
    text = PolicyText("keyhole.toml", "\n".join(lines).encode())
    (service,) = load(text, None, WORLD).policy.services
    return service


@dataclass(frozen=True)
class Told:
    """What a client got, and why."""

    judgement: BodyJudgement
    answer: Any

    @property
    def text(self) -> str:
        return json.dumps(self.answer)

    @property
    def errors(self) -> str:
        return " | ".join(each["message"] for each in self.answer.get("errors", ()))


class JudgedForge:
    """A forge, and one session's judge before it."""

    def __init__(self, more: str = 'api = "read"', repos: str = '"acme/widgets"') -> None:
        self.forge = GithubForge()
        self.service = github_service(more, repos)
        judge = make_judge(self.service)
        assert judge is not None
        self.judge = judge

    def ask(self, document: str, variables: object = None, **more: object) -> Told:
        """Ask as a client does."""
        return self.send({"query": document, "variables": variables, **more})

    def send(self, value: object) -> Told:
        """Send a body."""
        return self.send_bytes(json.dumps(value).encode())

    def send_bytes(self, body: bytes) -> Told:
        """The same."""
        try:
            facts = self.facts(body, json=read_json(body), flaw="")
        except Malformed as error:
            facts = self.facts(body, flaw=str(error))
        judgement = self.judge.judge(facts)
        if judgement.answer is not None:
            assert not judgement.allowed or judgement.body is None
            return Told(judgement, json.loads(judgement.answer))
        assert judgement.allowed
        assert judgement.body is not None
        assert judgement.reader is not None
        came = json.dumps(self.forge.execute(judgement.body)).encode()
        reader = judgement.reader
        assert reader.begin(200, {"content-type": "application/json"})
        passed = reader.feed(came[:7]) + reader.feed(came[7:]) + reader.end()
        return Told(judgement, json.loads(passed))

    def facts(self, body: bytes = b"", **more: Any) -> BodyFacts:  # noqa: ANN401 - of BodyFacts
        return BodyFacts(self.service.hosts[0], "POST", PATH, ALLOWED, body=body, **more)

    def learn(self) -> None:
        """Read what gh reads before it writes."""
        self.ask(
            '{repository(owner:"acme",name:"widgets"){id '
            "labels(first:9){nodes{id}} milestones(first:9){nodes{id}} "
            "assignableUsers(first:9){nodes{id}} issues(first:9){nodes{id comments(first:9)"
            "{nodes{id}}}} pullRequests(first:9){nodes{id}}}}"
        )
