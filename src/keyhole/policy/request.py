"""Decides whether a request may be made to an inspected host (I3, I4).

The path is normalised once and judged in that form; a path that two servers could read differently
is refused, or, where the service accepts `%2F`, judged in both readings.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Reason, RequestDecision, Verdict
from keyhole.model.errors import Unparsable
from keyhole.model.path import RequestPath
from keyhole.model.query import is_plain_query, parse_query
from keyhole.model.repository import Forge
from keyhole.model.rule import ALLOWED_BY, DENIED_BY, GRPC, WEBSOCKET, WORDS, plain_method
from keyhole.policy.forge import (
    decide_git_request,
    find_git_request,
    is_elsewhere,
    is_graphql,
    is_merge,
)
from keyhole.policy.policy import RankedRule, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.host import Host
    from keyhole.policy.policy import GitGrant, Service
    from keyhole.policy.rulebook import HostRules, Rulebook

DNS_QUERY_FIELD = "dns"
"""RFC 8484: a question in the query would resolve names past the gateway."""

_METHOD = "method"
_METHOD_FIELDS = frozenset(
    f"{x}{name}"
    for x in ("", "x")
    for name in ("httpmethod", "httpmethodoverride", "methodoverride")
)
"""Fields of a query, by their letters, from which a server takes another method than was asked."""

_ALLOW = Verdict.ALLOW

_SAYS_LITTLE = (Reason.REPOSITORY_NOT_GRANTED, Reason.NO_RULE)
"""Where accounts share a host, reasons that explain less than any other account's refusal. The
first explains least, since a repository that one account has does exist."""


class RequestFacts(Struct, frozen=True):
    """A request as the client sent it: path and query (without `?`) undecoded."""

    method: str
    """As a rule names it: a method, with `+body` where HTTP defines none, `WEBSOCKET` or `GRPC`."""
    path: str
    query: str = ""


def decide_request(book: Rulebook, host: Host, port: int, request: RequestFacts) -> RequestDecision:
    """Decide one request to an inspected host."""
    return decide_among(book.services(host, port), request)


def decide_among(services: Iterable[HostRules], request: RequestFacts) -> RequestDecision:
    """The same, when the services that inspect the host are known."""
    if request.method not in WORDS:
        return RequestDecision(reason=Reason.METHOD_REFUSED)
    if request.query and (refused := decide_query(request.query)) is not None:
        return refused
    refusal = RequestDecision()
    for rules in services:
        decision = _decide_for(rules, request)
        if decision.verdict is _ALLOW:
            return decision
        if refusal.service is None or _tells(decision) > _tells(refusal):
            refusal = decision
    return refusal


def _tells(refusal: RequestDecision) -> int:
    """How well a refusal explains itself, compared with others."""
    reason = refusal.reason
    return _SAYS_LITTLE.index(reason) if reason in _SAYS_LITTLE else len(_SAYS_LITTLE)


def decide_query(query: str) -> RequestDecision | None:
    """The refusal of a query, whatever the path is; None if only rules decide.

    No rule reads a query except git's, which compares all of it.
    """
    if is_plain_query(query):
        lower = query.lower()
        if DNS_QUERY_FIELD not in lower and _METHOD not in lower:
            return None  # no field can have such a name
    try:
        fields = parse_query(query)
    except Unparsable:
        return RequestDecision(reason=Reason.QUERY_MALFORMED)
    if DNS_QUERY_FIELD in fields:
        return RequestDecision(reason=Reason.DNS_OVER_HTTPS)
    if any(map(_names_method, fields)):
        return RequestDecision(reason=Reason.METHOD_OVERRIDE)
    return None


def _names_method(field: str) -> bool:
    """Whether a server may read another method from a field of this name.

    `_method` is the frameworks' own, `$httpMethod` Google's, `_HttpMethod` Salesforce's. PHP reads
    `.method` and `[method` as the first, and some end a name at `[` or NUL. A field that is called
    `method` is an ordinary parameter.
    """
    for name in (field, field.partition("[")[0].partition("\0")[0]):
        letters = "".join(filter(str.isalpha, name))
        if letters in _METHOD_FIELDS or (letters == _METHOD and name.strip()[0] != "m"):
            return True
    return False


def _decide_for(rules: HostRules, request: RequestFacts) -> RequestDecision:
    service = rules.service
    opaque = rules.host.encoded_slash
    try:
        path = RequestPath.parse(request.path, opaque_slash=opaque)
    except Unparsable:
        return RequestDecision(reason=Reason.PATH_MALFORMED, service=service.name)
    if rules.host.git and service.git:
        found = find_git_request(service.git.forge, path)
        if found:
            return decide_git_request(service, found, request.method, request.query)
    decision = _decide_path(rules, request.method, path)
    if service.git and not decision.allowed:
        return _refused_by_forge(service, service.git, path, decision)
    if opaque and decision.allowed and "%2f" in request.path.lower():
        other = path.split_reading
        if other is None:
            return RequestDecision(reason=Reason.PATH_MALFORMED, service=service.name)
        if not (split := _decide_path(rules, request.method, other)).allowed:
            return split
    return decision


def _refused_by_forge(
    service: Service, git: GitGrant, path: RequestPath, decision: RequestDecision
) -> RequestDecision:
    """Refine the refusal of a forge's REST path: a repository that is not granted does not
    exist."""
    name, found = service.name, decision.reason
    if is_graphql(path):
        judged = git.forge is Forge.GITHUB
        reason = Reason.GRAPHQL if judged else Reason.GRAPHQL_CLOSED
        return RequestDecision(reason=reason, rule=decision.rule, service=name)
    if found in (Reason.NO_RULE, Reason.GUARDED_ENDPOINT) and is_elsewhere(git, path):
        rule = f"{service.rule}.repos"
        return RequestDecision(reason=Reason.REPOSITORY_NOT_GRANTED, rule=rule, service=name)
    if found is Reason.GUARDED_ENDPOINT and is_merge(git, path):
        return RequestDecision(reason=Reason.MERGE_BY_REST, rule=decision.rule, service=name)
    return decision


def _decide_path(rules: HostRules, word: str, path: RequestPath) -> RequestDecision:
    name = rules.service.name
    folded = path.folded()
    denying, allowing = DENIED_BY[word], ALLOWED_BY[word]
    plain = plain_method(word)
    if word != plain and rules.bodies.find((word,), folded):
        # The catalogue knows that this endpoint reads a body, so the method alone allows it.
        allowing = ALLOWED_BY[plain]
    denial = rules.denials.find(denying, folded)
    if denial is not None and denial.tier is Tier.DENY:
        return RequestDecision(reason=Reason.DENIED_BY_RULE, rule=denial.id, service=name)
    allow = _stronger(
        rules.allows.find(allowing, path.segments), rules.folding_allows.find(allowing, folded)
    )
    if denial is not None and not _is_opened(rules, denying, allowing, path):
        return RequestDecision(reason=Reason.GUARDED_ENDPOINT, rule=denial.id, service=name)
    if allow is not None:
        return _allowed(allow.id, name)
    # A gRPC call that no rule for POST covers needs no such check: the search was for both.
    if word not in (plain, GRPC) and _decide_path(rules, plain, path).allowed:
        reason = Reason.WEBSOCKET_NOT_GRANTED if word == WEBSOCKET else Reason.BODY_NOT_GRANTED
        return RequestDecision(reason=reason, service=name)
    return RequestDecision(service=name)


@functools.lru_cache(maxsize=256)
def _allowed(rule: str, service: str) -> RequestDecision:
    """Return the same value each time: there are many paths and few rules."""
    return RequestDecision(_ALLOW, Reason.RULE, rule, service)


def _is_opened(
    rules: HostRules, denying: tuple[str, ...], allowing: tuple[str, ...], path: RequestPath
) -> bool:
    """Whether each guard that matches this request is opened by an allow that lies inside it.

    Opening one guard must not open another: `POST /v1/**` may lie inside a wide guard, and still
    not inside a second guard that protects one endpoint below.
    """
    matching = (
        *rules.allows.find_all(allowing, path.segments),
        *rules.folding_allows.find_all(allowing, path.folded()),
    )
    openings = [ranked.rule for ranked in matching if ranked.tier is Tier.OPENING]
    guards = rules.denials.find_all(denying, path.folded())
    return all(any(guard.rule.covers(rule) for rule in openings) for guard in guards)


def _stronger(one: RankedRule | None, two: RankedRule | None) -> RankedRule | None:
    if one is None or (two is not None and two.tier < one.tier):
        return two
    return one
