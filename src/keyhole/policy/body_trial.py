"""Asks the judge of a service about a request that a person typed, with or without its body.

Called by `explain.py`, after rules on method and path have allowed the request.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.model.path import RequestPath
from keyhole.model.rule import BODILESS, WEBSOCKET
from keyhole.policy.body import EMPTY, NOT_JSON, BodyFacts, find_flaw, read_facts
from keyhole.policy.judges import make_judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.decision import RequestDecision
    from keyhole.policy.body import BodyJudge, BodyJudgement, BodyNote
    from keyhole.policy.policy import Service, ServiceHost
    from keyhole.policy.request import RequestFacts
    from keyhole.wire.strict_json import JsonValue

NO_FIELDS: Mapping[str, str] = MappingProxyType({})

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"


class TypedRequest(Struct, frozen=True):
    """A request as a person typed it. `fields` have names in lower case. If `body` is None, the
    body is not known."""

    request: RequestFacts
    fields: Mapping[str, str] = NO_FIELDS
    body: bytes | None = None


class BodyTrial(Struct, frozen=True):
    """The judge's answer."""

    judged: bool = False
    """Whether it is judged at all."""
    said: BodyJudgement | None = None
    """The judgement; None: it depends on the body."""
    notes: tuple[BodyNote, ...] = ()
    """Other findings of the judge."""
    json: JsonValue = None
    """The body's value, if it was read."""


def try_request(
    service: Service, host: ServiceHost, typed: TypedRequest, decision: RequestDecision
) -> BodyTrial:
    """Judge a request that `decision` allows."""
    judge, request = make_judge(service), typed.request
    path = RequestPath.parse(request.path, opaque_slash=host.encoded_slash)
    if judge is None or not judge.wants(host, request.method, path, decision):
        return BodyTrial()
    facts = BodyFacts(host, request.method, path, decision, request.query)
    if typed.body is None and request.method in BODILESS:
        facts = _without_body(facts, typed.fields)
        said = judge.judge_head(facts) or judge.judge(facts)
        # The messages to an MCP server are in bodies, whatever the method that was typed.
        depends = said.allowed and service.mcp is not None
        return BodyTrial(True, None if depends else said, tuple(judge.notes))
    if typed.body is None:
        return BodyTrial(True, judge.judge_head(_without_body(facts, typed.fields)))
    return _judge(judge, facts, typed.fields, typed.body)


def _without_body(facts: BodyFacts, fields: Mapping[str, str]) -> BodyFacts:
    if facts.word in BODILESS or facts.word == WEBSOCKET:
        return replace(facts, fields=fields, flaw=EMPTY)
    return replace(facts, fields={"content-type": _FORM, **fields}, flaw=NOT_JSON)


def _judge(judge: BodyJudge, facts: BodyFacts, fields: Mapping[str, str], body: bytes) -> BodyTrial:
    if "content-type" not in fields:
        form = judge.judges_heads and body.lstrip()[:1] not in (b"{", b"[")
        fields = {**fields, "content-type": _FORM if form else _JSON}
    flaw = find_flaw(fields, empty=not body, typed=judge.needs_type)
    facts = replace(facts, fields=fields, flaw=flaw)
    said = judge.judge_head(facts)
    if said is None:
        facts = replace(facts, body=body) if facts.flaw else read_facts(facts, body)
        said = (judge.judge_message if facts.word == WEBSOCKET else judge.judge)(facts)
    return BodyTrial(True, said, tuple(judge.notes), facts.json)
