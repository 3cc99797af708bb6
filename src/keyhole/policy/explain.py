"""Why: the decision on a target with its rule, what would be injected, and what would allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.injection import BasicInjection
from keyhole.model.decision import Decision, Reason, Route
from keyhole.model.glob import Glob
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.ref import Ref, RefKind
from keyhole.model.rule import METHODS, WEBSOCKET, WORDS
from keyhole.model.value import dataclass
from keyhole.policy.egress import decide_egress
from keyhole.policy.forge import (
    GitEndpoint,
    GitRequest,
    decide_git_request,
    find_git_request,
    repository_at,
)
from keyhole.policy.push import Change, Remote, decide_ref_update
from keyhole.policy.request import decide_request
from keyhole.policy.services import PLAIN_HTTP_PORT
from keyhole.policy.target import HostTarget, LiteralTarget, PushTarget, RequestTarget, Target

if TYPE_CHECKING:
    from keyhole.model.repository import Repository
    from keyhole.policy.policy import GitGrant, Service, ServiceHost
    from keyhole.policy.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Fix:
    """What to write: a key of a table, and the value to add to or set it to."""

    table: str
    key: str
    value: str
    remark: str | None = None

    def __str__(self) -> str:
        remark = f"   # {self.remark}" if self.remark else ""
        return f"[{self.table}]\n{self.key} = {self.value}{remark}"


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in words. `fix` is the key, and what to add to it, that would allow it."""

    decision: Decision
    said: str
    route: Route = Route.NONE
    service: str | None = None
    injected: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    fix: Fix | None = None


SAID = {
    Reason.NO_RULE: "no rule names it",
    Reason.LITERAL_ADDRESS: "literal addresses are refused; hosts are reached by name",
    Reason.PORT_NOT_GRANTED: "the name is allowed, but not at this port",
    Reason.METHOD_REFUSED: "this method is never allowed",
    Reason.METHOD_OVERRIDE: "a header or the query names another method than the request has",
    Reason.BODY_NOT_GRANTED: "the request is allowed, but not with a body, which HTTP does not "
    "define for its method",
    Reason.WEBSOCKET_NOT_GRANTED: "a request is allowed there, but a WebSocket is a grant of its "
    "own",
    Reason.PATH_MALFORMED: "the path can be read in more than one way",
    Reason.QUERY_MALFORMED: "the query is not well formed",
    Reason.DNS_OVER_HTTPS: "a DNS question inside a request",
    Reason.DENIED_BY_RULE: "a deny rule names it",
    Reason.GUARDED_ENDPOINT: "it can mint, list or move credentials or data, so it must be "
    "allowed by name",
    Reason.GRAPHQL: "GraphQL names repositories by opaque ids, so it cannot be confined to those "
    "that are granted",
    Reason.REPOSITORY_NOT_GRANTED: "the repository is not granted, so it does not exist",
    Reason.ENDPOINT_REFUSED: "not one of git's smart HTTP requests",
    Reason.READ_ONLY: "the repository is granted for reading only",
    Reason.REF_MALFORMED: "not a plain branch or tag name",
    Reason.REF_NAMESPACE: "only branches and tags exist",
    Reason.REF_NOT_GRANTED: "no push pattern covers the branch",
    Reason.REF_PROTECTED: "the branch is protected",
    Reason.FORCE_NOT_GRANTED: "rewriting history is not granted",
    Reason.DELETE_NOT_GRANTED: "deleting is not granted",
    Reason.TAG_NOT_GRANTED: "no tag pattern covers the tag",
    Reason.TAG_MOVE: "a tag is created once and never moved",
}
"""Reasons for a denial, for people."""

_FIXED_BY_ALLOW = frozenset(
    {
        Reason.NO_RULE,
        Reason.GUARDED_ENDPOINT,
        Reason.BODY_NOT_GRANTED,
        Reason.WEBSOCKET_NOT_GRANTED,
    }
)
"""Refusals that a rule in the service's `allow` lifts."""

_USUAL_DEFAULTS = ("main", "master", "trunk", "develop")


def explain(book: Rulebook, target: Target) -> Explanation:
    """Explain what would happen to a target."""
    if isinstance(target, LiteralTarget):
        decision = Decision(reason=Reason.LITERAL_ADDRESS)
        return Explanation(decision, SAID[decision.reason])
    connection = _host(book, target.host, target.port)
    if isinstance(target, RequestTarget) and connection.route is Route.TUNNEL:
        return _tunnelled(connection, target)
    if isinstance(target, HostTarget) or connection.route is not Route.INSPECT:
        return connection
    if isinstance(target, RequestTarget):
        return _request(book, target)
    return _push(book, target)


def _host(book: Rulebook, host: Host, port: int) -> Explanation:
    decision = decide_egress(book, host, port)
    if not decision.allowed:
        name = str(host) if port == DEFAULT_PORT else f"{host}:{port}"
        fix = Fix("egress", "allow", f'["{name}"]')
        return Explanation(decision, SAID[decision.reason], fix=fix)
    if decision.route is Route.TUNNEL:
        said = "tunnelled: passed on untouched, never decrypted, any request"
        return Explanation(decision, said, decision.route)
    service, entry = _service_at(book, host, port, None)
    said = "inspected: each request is judged by the service's rules"
    return Explanation(
        decision, said, decision.route, service.name, _written(service, entry, git=False)
    )


def _tunnelled(connection: Explanation, target: RequestTarget) -> Explanation:
    """Of a tunnel on port 80 requests are read, though no rule speaks of them."""
    word = target.request.method
    if target.port != PLAIN_HTTP_PORT or word in METHODS:
        return connection
    reason = Reason.METHOD_REFUSED
    if word in WORDS:
        reason = Reason.WEBSOCKET_NOT_GRANTED if word == WEBSOCKET else Reason.BODY_NOT_GRANTED
    said = "plain HTTP to a tunnelled host has no WebSocket, and no body where HTTP defines none"
    return Explanation(Decision(reason=reason), said, Route.TUNNEL)


def _request(book: Rulebook, target: RequestTarget) -> Explanation:
    request = target.request
    decision = decide_request(book, target.host, target.port, request)
    service, entry = _service_at(book, target.host, target.port, decision.service)
    if decision.allowed:
        git = decision.rule == f"{service.rule}.repos"
        said = "inspected and allowed"
        injected = _written(service, entry, git=git)
        return Explanation(decision, said, Route.INSPECT, service.name, injected)
    fix = None
    if decision.reason is Reason.NO_RULE and service.git and request.method in METHODS:
        fix = Fix(service.rule, "api", '"pull-requests"', "or `repos`, for another repository")
    elif decision.reason in _FIXED_BY_ALLOW:
        remark = "beside what is allowed already; it replaces the catalogue's list"
        rule = f'["{request.method} {request.path}"]'
        fix = Fix(service.rule, "allow", rule, remark if service.template else None)
    elif decision.reason is Reason.READ_ONLY:
        fix = Fix(service.rule, "push", '["agent/*"]')
    elif decision.reason is Reason.REPOSITORY_NOT_GRANTED:
        named = _repository_of(service, request.path)
        fix = Fix(service.rule, "repos", f'["{named}"]') if named else None
    return Explanation(decision, SAID[decision.reason], Route.INSPECT, service.name, fix=fix)


def _repository_of(service: Service, path: str) -> Repository | None:
    found = service.git and find_git_request(service.git.forge, RequestPath.parse(path))
    return found.repository if found else None


def _push(book: Rulebook, target: PushTarget) -> Explanation:
    path = RequestPath.parse(target.path)
    found = Explanation(Decision(), "no git service has this host", Route.INSPECT)
    for rules in book.services(target.host, target.port):
        git = rules.service.git
        if git and rules.host.git:
            found = _push_to(rules.service, git, path, target)
            if found.decision.reason is not Reason.REPOSITORY_NOT_GRANTED:
                break
    return found


def _push_to(service: Service, git: GitGrant, path: RequestPath, target: PushTarget) -> Explanation:
    repository = repository_at(git.forge, path.segments)
    asked = GitRequest(repository, GitEndpoint.PUSH)
    decision: Decision = decide_git_request(service, asked, "POST", "")
    if decision.allowed:
        change, remote = _assumed(target)
        decision = decide_ref_update(service, target.ref, change, remote)
    if decision.allowed:
        return Explanation(
            decision,
            "the push would be judged and sent",
            Route.INSPECT,
            service.name,
            (_basic(git),) if service.secret else (),
            _caveats(git, target),
        )
    fix = _push_fix(decision.reason, service, target)
    if decision.reason is Reason.REPOSITORY_NOT_GRANTED and repository:
        fix = Fix(service.rule, "repos", f'["{repository}"]')
    return Explanation(decision, SAID[decision.reason], Route.INSPECT, service.name, fix=fix)


def _assumed(target: PushTarget) -> tuple[Change, Remote]:
    """Without asking the remote: usual names are taken for its default branch, tags are new."""
    short = target.ref.removeprefix("refs/heads/")
    default = short if short in _USUAL_DEFAULTS else _USUAL_DEFAULTS[0]
    change = target.change
    if target.ref.startswith("refs/tags/") and change is Change.FAST_FORWARD:
        change = Change.CREATE
    return change, Remote(Ref(RefKind.BRANCH, (default,)))


def _caveats(git: GitGrant, target: PushTarget) -> tuple[str, ...]:
    caveats = []
    if target.change is Change.FAST_FORWARD and not git.force:
        caveats.append("refused unless it creates the branch or moves it forward")
    short = target.ref.removeprefix("refs/heads/")
    if git.protect is None and Glob(tuple(short.split("/"))) not in git.push:
        caveats.append("refused if it is the remote's default branch and `push` has no such name")
    if git.deny_paths:
        caveats.append(f"refused if it changes one of {len(git.deny_paths)} `deny_paths`")
    return tuple(caveats)


def _push_fix(reason: Reason, service: Service, target: PushTarget) -> Fix | None:
    short = target.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
    named = f'["{short}"]'
    lifts = "named exactly, it is not protected by default"
    fixes = {
        Reason.READ_ONLY: Fix(service.rule, "push", named),
        Reason.REF_NOT_GRANTED: Fix(service.rule, "push", named),
        Reason.REF_PROTECTED: Fix(service.rule, "push", named, lifts),
        Reason.FORCE_NOT_GRANTED: Fix(service.rule, "force", "true"),
        Reason.DELETE_NOT_GRANTED: Fix(service.rule, "delete", "true"),
        Reason.TAG_NOT_GRANTED: Fix(service.rule, "tags", named),
    }
    return fixes.get(reason)


def _service_at(
    book: Rulebook, host: Host, port: int, name: str | None
) -> tuple[Service, ServiceHost]:
    rules = book.services(host, port)
    chosen = next((r for r in rules if r.service.name == name), rules[0])
    return chosen.service, chosen.host


def _written(service: Service, host: ServiceHost, *, git: bool) -> tuple[str, ...]:
    """How the secret is written, by name and never by value."""
    if not service.secret and not host.credential:
        return ()
    return tuple(str(injection) for injection in (host.git_inject if git else host.inject))


def _basic(git: GitGrant) -> str:
    return str(BasicInjection(git.user))
