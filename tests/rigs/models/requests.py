"""Requests to models for tests: judged as the real catalogue and a policy say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.path import RequestPath
from keyhole.policy.body import NOT_JSON, BodyFacts
from keyhole.policy.build import PolicyContext
from keyhole.policy.judges import make_judge
from keyhole.policy.load import PolicyText, load

if TYPE_CHECKING:
    from keyhole.policy.body import BodyJudge, BodyJudgement
    from keyhole.policy.policy import Service

CATALOGUE = FileCatalogue()
WORLD = PolicyContext(CATALOGUE, lambda _: None, ())


def model_service(name: str, more: str = "") -> Service:
    """A service of the catalogue under a policy with these keys."""
    hosts = ""
    if CATALOGUE[name].needs_hosts:
        example = CATALOGUE[name].hosts[0].example.replace("REGION", "us-east-1")
        hosts = f'hosts = ["{example.replace("RESOURCE", "mine")}"]\n'
    text = f'version = 1\n[services.{name}]\nsecret = "store:x"\n{hosts}{more}\n'
    return load(PolicyText("keyhole.toml", text.encode()), None, WORLD).policy.services[0]


def facts_of(
    service: Service,
    path: str,
    body: Any = None,  # noqa: ANN401 - JSON
    *,
    word: str = "POST",
    query: str = "",
    host: int = 0,
    **fields: str,
) -> BodyFacts:
    """The facts of a request with this body, as the gateway makes them."""
    decision = RequestDecision(Verdict.ALLOW, Reason.RULE, "catalogue.rule", service.name)
    at = service.hosts[host]
    found = RequestPath.parse(path, opaque_slash=at.encoded_slash)
    facts = BodyFacts(at, word, found, decision, query, {**fields})
    if body is None:
        return replace(facts, flaw=NOT_JSON)
    raw = json.dumps(body).encode()
    return replace(facts, body=raw, size=len(raw), json=body, flaw="")


def judge_of(service: Service) -> BodyJudge:
    """The judge of a service."""
    judge = make_judge(service)
    assert judge is not None
    return judge


def judged(service: Service, path: str, body: Any, **more: Any) -> BodyJudgement:  # noqa: ANN401
    """The judgement on a request."""
    return judge_of(service).judge(facts_of(service, path, body, **more))
