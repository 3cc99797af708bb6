"""Why: the decision on a target with its rule, what would be injected, and what would allow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.model.decision import Decision, Reason, Route
from keyhole.model.errors import Unparsable
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath
from keyhole.model.ref import Ref, RefKind
from keyhole.policy.egress import decide_egress
from keyhole.policy.forge import GitEndpoint, GitRequest, decide_git_request, repository_at
from keyhole.policy.push import Change, Remote, decide_ref_update
from keyhole.policy.request import decide_request
from keyhole.policy.target import HostTarget, PushTarget, RequestTarget, Target

if TYPE_CHECKING:
    from keyhole.policy.policy import Service, ServiceHost
    from keyhole.policy.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in words. `fix` is what to write to allow what was denied."""

    decision: Decision
    said: str
    route: Route = Route.NONE
    service: str | None = None
    injected: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    fix: str | None = None


SAID = {
    Reason.NO_RULE: "no rule names it",
    Reason.PORT_NOT_GRANTED: "the name is allowed, but not at this port",
    Reason.METHOD_REFUSED: "this method is never allowed",
    Reason.PATH_MALFORMED: "the path can be read in more than one way",
    Reason.QUERY_MALFORMED: "the query is not well formed",
    Reason.DNS_OVER_HTTPS: "a DNS question inside a request",
    Reason.DENIED_BY_RULE: "a deny rule names it",
    Reason.GUARDED_ENDPOINT: "it can mint, list or move credentials or data, so it must be "
    "allowed by name",
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

_USUAL_DEFAULTS = ("main", "master", "trunk", "develop")


def explain(book: Rulebook, target: Target) -> Explanation:
    """Explain what would happen to a target."""
    match target:
        case HostTarget():
            return _host(book, target.host, target.port)
        case RequestTarget():
            return _request(book, target)
        case PushTarget():
            return _push(book, target)


def _host(book: Rulebook, host: Host, port: int) -> Explanation:
    decision = decide_egress(book, host, port)
    if not decision.allowed:
        name = str(host) if port == DEFAULT_PORT else f"{host}:{port}"
        fix = f'[egress]\nallow = ["{name}"]'
        return Explanation(decision, SAID[decision.reason], fix=fix)
    if decision.route is Route.TUNNEL:
        said = "tunnelled: encrypted end to end, never decrypted, any request"
        return Explanation(decision, said, decision.route)
    service, entry = _service_at(book, host, port, None)
    said = "inspected: each request is judged by the service's rules"
    return Explanation(
        decision, said, decision.route, service.name, _written(service, entry, git=False)
    )


def _request(book: Rulebook, target: RequestTarget) -> Explanation:
    connection = _host(book, target.host, target.port)
    if connection.route is not Route.INSPECT:
        return connection
    request = target.request
    decision = decide_request(book, target.host, target.port, request)
    service, entry = _service_at(book, target.host, target.port, decision.service)
    if decision.allowed:
        git = decision.rule == f"{service.rule}.repos"
        said = "inspected and allowed"
        injected = _written(service, entry, git=git)
        return Explanation(decision, said, Route.INSPECT, service.name, injected)
    fix = None
    if decision.reason in (Reason.NO_RULE, Reason.GUARDED_ENDPOINT):
        fix = f'[{service.rule}]\nallow = ["{request.method} {request.path}"]'
    elif decision.reason is Reason.READ_ONLY:
        fix = f'[{service.rule}]\npush = ["agent/*"]'
    return Explanation(decision, SAID[decision.reason], Route.INSPECT, service.name, fix=fix)


def _push(book: Rulebook, target: PushTarget) -> Explanation:
    connection = _host(book, target.host, target.port)
    if connection.route is not Route.INSPECT:
        return connection
    candidates = [r.service for r in book.services(target.host, target.port) if r.host.git]
    if not candidates:
        return Explanation(Decision(), "no git service has this host", connection.route)
    path = RequestPath.parse(target.path)
    found: Explanation | None = None
    for service in candidates:
        found = _push_to(service, path, target)
        if found.decision.reason is not Reason.REPOSITORY_NOT_GRANTED:
            break
    return found or connection


def _push_to(service: Service, path: RequestPath, target: PushTarget) -> Explanation:
    if service.git is None:
        raise Unparsable("not a git service")
    repository = repository_at(service.git.forge, path.segments)
    asked = GitRequest(repository, GitEndpoint.PUSH)
    decision: Decision = decide_git_request(service, asked, "POST", "")
    heading = f"[{service.rule}]"
    if not decision.allowed:
        fix = f'{heading}\npush = ["agent/*"]'
        if decision.reason is Reason.REPOSITORY_NOT_GRANTED and repository:
            fix = f'{heading}\nrepos = ["{repository}"]'
        return Explanation(decision, SAID[decision.reason], Route.INSPECT, service.name, fix=fix)
    change, remote = _assumed(target)
    decision = decide_ref_update(service, target.ref, change, remote)
    if decision.allowed:
        return Explanation(
            decision,
            "the push would be judged and sent",
            Route.INSPECT,
            service.name,
            (f"header Authorization: Basic {service.git.user}:{{secret}}",) * bool(service.secret),
            _caveats(service, target.change),
        )
    return Explanation(
        decision,
        SAID[decision.reason],
        Route.INSPECT,
        service.name,
        fix=_push_fix(decision.reason, heading, target),
    )


def _assumed(target: PushTarget) -> tuple[Change, Remote]:
    """Without asking the remote: usual names are taken for its default branch, tags are new."""
    short = target.ref.removeprefix("refs/heads/")
    default = short if short in _USUAL_DEFAULTS else _USUAL_DEFAULTS[0]
    change = target.change
    if target.ref.startswith("refs/tags/") and change is Change.FAST_FORWARD:
        change = Change.CREATE
    return change, Remote(Ref(RefKind.BRANCH, (default,)))


def _caveats(service: Service, change: Change) -> tuple[str, ...]:
    git = service.git
    if git is None:
        return ()
    caveats = []
    if change is Change.FAST_FORWARD and not git.force:
        caveats.append("refused unless it creates the branch or moves it forward")
    if git.protect is None:
        caveats.append("refused if it is the remote's default branch and `push` has no such name")
    if git.deny_paths:
        caveats.append(f"refused if it changes one of {len(git.deny_paths)} `deny_paths`")
    return tuple(caveats)


def _push_fix(reason: Reason, heading: str, target: PushTarget) -> str | None:
    short = target.ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
    fixes = {
        Reason.REF_NOT_GRANTED: f'push = ["{short}"]',
        Reason.REF_PROTECTED: f'push = ["{short}"]  # naming it exactly lifts protection',
        Reason.FORCE_NOT_GRANTED: "force = true",
        Reason.DELETE_NOT_GRANTED: "delete = true",
        Reason.TAG_NOT_GRANTED: f'tags = ["{short}"]',
    }
    return f"{heading}\n{fixes[reason]}" if reason in fixes else None


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
    if git and service.git:
        return (f"header Authorization: Basic {service.git.user}:{{secret}}",)
    return tuple(str(injection) for injection in host.inject)
