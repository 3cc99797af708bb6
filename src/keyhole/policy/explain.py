"""Explains a decision on a target: its rule, what would be injected, and what would allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keyhole.inject.injection import BasicInjection
from keyhole.inject.service_hosts import SERVICE_HOSTS, usual_secret
from keyhole.model.decision import Decision, Reason, RequestDecision, Route, Verdict
from keyhole.model.glob import Glob
from keyhole.model.host import DEFAULT_PORT, Host
from keyhole.model.path import RequestPath, glob_text
from keyhole.model.reasons import info_of, sentence_of
from keyhole.model.ref import Ref, RefKind, short_ref
from keyhole.model.rule import GRPC, METHODS, WEBSOCKET, WORDS, rule_text
from keyhole.model.toml import parse_toml, toml_string
from keyhole.policy.body_trial import NO_FIELDS, TypedRequest, try_request
from keyhole.policy.edit import RuleAddition
from keyhole.policy.egress import decide_egress
from keyhole.policy.forge import (
    GitEndpoint,
    GitRequest,
    decide_git_request,
    find_git_request,
    repository_at,
    repository_in_rest,
)
from keyhole.policy.ports import LEAST_PORT
from keyhole.policy.push import RefChange, RemoteFacts, decide_ref_update
from keyhole.policy.request import decide_request
from keyhole.policy.services import PLAIN_HTTP_PORT
from keyhole.policy.target import HostTarget, LiteralTarget, PushTarget, RequestTarget, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.model.repository import Forge, Repository
    from keyhole.policy.policy import GitGrant, Service, ServiceHost
    from keyhole.policy.rulebook import Rulebook
    from keyhole.wire.strict_json import JsonValue


class SuggestedFix(Struct, frozen=True):
    """A suggested change: a key of a table, and the value to add or set. `more` has the changes of
    the same table without which this one would not be enough."""

    table: str
    key: str
    value: str
    remark: str | None = None
    more: tuple[SuggestedFix, ...] = ()

    def __str__(self) -> str:
        lines = (fix._line for fix in (self, *self.more))
        return "\n".join((f"[{self.table}]", *lines))

    @property
    def _line(self) -> str:
        remark = f"   # {self.remark}" if self.remark else ""
        return f"{self.key} = {self.value}{remark}"

    @property
    def addition(self) -> RuleAddition:
        """The change as one that `edit.py` makes."""
        value = parse_toml(f"value = {self.value}")["value"]
        listed = isinstance(value, list)
        return RuleAddition(
            tuple(self.table.split(".")), self.key, value[0] if listed else value, listed
        )

    def into(self, policy: Mapping[str, object]) -> tuple[str, str]:
        """Where it goes in a policy file with these tables, and what to write there."""
        table: object = policy
        for name in self.table.split("."):
            table = table.get(name) if isinstance(table, dict) else None
        if not isinstance(table, dict):
            return "", str(self)
        if isinstance(table.get(self.key), list):
            return f"{self.table}.{self.key}", self.value.removeprefix("[").removesuffix("]")
        more = (fix._line for fix in self.more if fix.key not in table)
        return f"[{self.table}]", "\n".join((self._line, *more))


class Explanation(Struct, frozen=True):
    """A decision in words. `fix` is the key, and what to add to it, that would allow it."""

    decision: Decision
    said: str
    route: Route = Route.NONE
    service: str | None = None
    injected: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    fix: SuggestedFix | None = None


_FIXED_BY_ALLOW = frozenset(
    {
        Reason.NO_RULE,
        Reason.GUARDED_ENDPOINT,
        Reason.BODY_NOT_GRANTED,
        Reason.WEBSOCKET_NOT_GRANTED,
    }
)
"""Refusals that a rule in the service's `allow` lifts."""

_FIXED_BY_WORD = {
    Reason.FEATURE_CLOSED: "features",
    Reason.OPERATION_CLOSED: "operations",
}
"""Refusals of a judge that a word under a key of the service lifts; the rule ends with the word."""

_FIXED_BY_NAME = {
    Reason.TOOL_NOT_GRANTED: ("tools", "name"),
    Reason.PROMPT_NOT_GRANTED: ("prompts", "name"),
    Reason.RESOURCE_NOT_GRANTED: ("resources", "uri"),
}
"""Refusals of a message of MCP, the key that lifts each, and the parameter to be named there."""

LOCALHOST = "localhost"

USUAL_DEFAULTS = ("main", "master", "trunk", "develop")
"""Names of default branches, which are protected unless the policy names them."""


def explain(
    book: Rulebook,
    target: Target,
    fields: Mapping[str, str] = NO_FIELDS,
    body: bytes | None = None,
) -> Explanation:
    """Explain what would happen to a target: of a request with these fields, whose names are in
    lower case, and this body."""
    if isinstance(target, LiteralTarget):
        decision = Decision(reason=Reason.LITERAL_ADDRESS)
        info = info_of(decision.reason)
        # No line of a policy allows it, so the hint says what to do instead.
        return Explanation(decision, f"{info.sentence}; {info.hint}")
    if target.host.name == LOCALHOST:
        return _localhost(book, target.port)
    connection = _host(book, target.host, target.port)
    if isinstance(target, RequestTarget) and connection.route is Route.TUNNEL:
        return _tunnelled(connection, target)
    if isinstance(target, HostTarget) or connection.route is not Route.INSPECT:
        return connection
    if isinstance(target, RequestTarget):
        return _request(book, target, fields, body)
    return _push(book, target)


def _localhost(book: Rulebook, port: int) -> Explanation:
    """The sandbox's own loopback, which no rule on hosts is about."""
    if port in book.policy.sandbox.host_ports:
        decision = Decision(Verdict.ALLOW, Reason.HOST_PORT, "sandbox.host_ports")
        return Explanation(decision, "this host's own port: passed on unread", Route.TUNNEL)
    said = "localhost is the sandbox itself, where nothing of this host listens"
    fix = SuggestedFix("sandbox", "host_ports", f"[{port}]") if port >= LEAST_PORT else None
    return Explanation(Decision(), said, fix=fix)


def _host(book: Rulebook, host: Host, port: int) -> Explanation:
    decision = decide_egress(book, host, port)
    if not decision.allowed:
        fix = _fix_of_host(host, port, decision.reason)
        return Explanation(decision, sentence_of(decision.reason), fix=fix)
    if decision.route is Route.TUNNEL:
        said = "tunnelled: passed on untouched, never decrypted, any request"
        return Explanation(decision, said, decision.route)
    service, entry = _service_at(book, host, port, None)
    said = "inspected: each request is judged by the service's rules"
    injected = _written(service, entry, git=False)
    caveats = _version(book, host, port)
    return Explanation(decision, said, decision.route, service.name, injected, caveats)


def _fix_of_host(host: Host, port: int, reason: str) -> SuggestedFix:
    names = SERVICE_HOSTS.get(host.name, ())
    if names and port == DEFAULT_PORT and reason == Reason.NO_RULE:
        others = " or ".join(f"[services.{name}]" for name in names[1:])
        secret, command = usual_secret(names[0])
        # A login is made for a service that the policy has, a stored secret before.
        when = "then" if secret.startswith("login:") else "after"
        remark = f"{when} `{command}`" + (f"; or {others}" if others else "")
        return SuggestedFix(f"services.{names[0]}", "secret", f'"{secret}"', remark)
    return host_fix(host, port)


def host_fix(host: Host, port: int) -> SuggestedFix:
    """The grant of a host of which nothing else is known."""
    named = str(host) if port == DEFAULT_PORT else f"{host}:{port}"
    return SuggestedFix("egress", "allow", f'["{named}"]')


def named_by_preset(found: Explanation, preset: str) -> Explanation:
    """The same explanation, for a host that this preset would allow."""
    return replace(found, fix=SuggestedFix("egress", "presets", f'["{preset}"]'))


def _tunnelled(connection: Explanation, target: RequestTarget) -> Explanation:
    """A tunnel. On port 80 its requests are read, although no rule names them."""
    word = target.request.method
    if target.port != PLAIN_HTTP_PORT or word in METHODS or word == GRPC:
        return connection
    reason = Reason.METHOD_REFUSED
    if word in WORDS:
        reason = Reason.WEBSOCKET_NOT_GRANTED if word == WEBSOCKET else Reason.BODY_NOT_GRANTED
    said = "plain HTTP to a tunnelled host has no WebSocket, and no body where HTTP defines none"
    return Explanation(Decision(reason=reason), said, Route.TUNNEL)


def _request(
    book: Rulebook, target: RequestTarget, fields: Mapping[str, str], body: bytes | None
) -> Explanation:
    request = target.request
    decision = decide_request(book, target.host, target.port, request)
    service, entry = _service_at(book, target.host, target.port, decision.service)
    if decision.allowed:
        git = decision.rule == f"{service.rule}.repos"
        said = "inspected and allowed"
        injected = _written(service, entry, git=git)
        caveats = _version(book, target.host, target.port)
        found = Explanation(decision, said, Route.INSPECT, service.name, injected, caveats)
        return _judged(found, service, entry, TypedRequest(request, fields, body))
    fix = None
    if decision.reason is Reason.NO_RULE and service.git and request.method in METHODS:
        fix = SuggestedFix(
            service.rule, "api", '"pull-requests"', "or `repos`, for another repository"
        )
    elif decision.reason in _FIXED_BY_ALLOW:
        own = f"{service.rule}.allow["
        listed = not service.template or any(each.id.startswith(own) for each in entry.rules)
        glob = glob_text(RequestPath.parse(request.path, opaque_slash=entry.encoded_slash))
        if glob:
            rule = f"[{toml_string(rule_text(request.method, glob))}]"
            fix = SuggestedFix(service.rule, "allow" if listed else "allow_also", rule)
    elif decision.reason is Reason.READ_ONLY:
        fix = SuggestedFix(service.rule, "push", '["agent/*"]')
    elif decision.reason is Reason.REPOSITORY_NOT_GRANTED and service.git:
        path = RequestPath.parse(request.path, opaque_slash=entry.encoded_slash)
        named = _repository_of(service.git.forge, path)
        fix = SuggestedFix(service.rule, "repos", f'["{named}"]') if named else None
    return Explanation(decision, sentence_of(decision.reason), Route.INSPECT, service.name, fix=fix)


def _judged(
    found: Explanation, service: Service, host: ServiceHost, typed: TypedRequest
) -> Explanation:
    """What the judge of a service says of a request that its rules allow."""
    by = found.decision
    decision = RequestDecision(by.verdict, by.reason, by.rule, service.name)
    trial = try_request(service, host, typed, decision)
    said = trial.said
    if said is None:
        caveat = "its body is judged, too: --data @FILE tries one" if trial.judged else ""
        if typed.body is not None:
            caveat = "its body is not judged"
        return replace(found, caveats=(*found.caveats, caveat)) if caveat else found
    if said.allowed and trial.notes:
        # The grant that opened it, as the log would name it: which tool is called.
        what = "; ".join(note.what for note in trial.notes)
        decision = trial.notes[0].decision
        return replace(found, decision=decision, said=f"inspected and allowed: {what}")
    if said.allowed:
        told = "inspected and allowed" + (", with this body" if typed.body is not None else "")
        return replace(found, said=told)
    fix = _body_fix(service, said.decision, trial.json)
    return replace(found, decision=said.decision, said=said.why, injected=(), caveats=(), fix=fix)


def _body_fix(service: Service, decision: Decision, message: JsonValue) -> SuggestedFix | None:
    """The word that would open what a request asks for."""
    if decision.reason in _FIXED_BY_WORD:
        word = decision.rule.split(".", 2)[2:]
        listed = f"[{toml_string(word[0])}]" if word else ""
        return SuggestedFix(service.rule, _FIXED_BY_WORD[decision.reason], listed) if word else None
    key, parameter = _FIXED_BY_NAME.get(decision.reason, ("", ""))
    if not key or not isinstance(message, dict):
        return None  # of a batch, the message that was refused may be any
    asked = message.get("params")
    name = asked.get(parameter) if isinstance(asked, dict) else None
    return SuggestedFix(service.rule, key, f"[{toml_string(str(name))}]")


def _version(book: Rulebook, host: Host, port: int) -> tuple[str, ...]:
    pinning = book.pinned_by(host, port)
    if pinning is None:
        return ()
    return (f"refused unless the client speaks HTTP/{pinning.http} ({pinning.rule}.http)",)


def _repository_of(forge: Forge, path: RequestPath) -> Repository | None:
    found = find_git_request(forge, path)
    return found.repository if found else repository_in_rest(forge, path)


def _push(book: Rulebook, target: PushTarget) -> Explanation:
    path = RequestPath.parse(target.path)
    found = Explanation(Decision(), "no git service has this host", Route.INSPECT)
    for rules in book.services(target.host, target.port):
        git = rules.service.git
        if git and rules.host.git:
            version = _version(book, target.host, target.port)
            found = _push_to(rules.service, git, path, target, version)
            if found.decision.reason is not Reason.REPOSITORY_NOT_GRANTED:
                break
    return found


def _push_to(
    service: Service, git: GitGrant, path: RequestPath, target: PushTarget, version: tuple[str, ...]
) -> Explanation:
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
            (*_caveats(git, target), *version),
        )
    fix = _push_fix(decision.reason, service, target)
    if decision.reason is Reason.REPOSITORY_NOT_GRANTED and repository:
        fix = SuggestedFix(service.rule, "repos", f'["{repository}"]')
    return Explanation(decision, sentence_of(decision.reason), Route.INSPECT, service.name, fix=fix)


def _assumed(target: PushTarget) -> tuple[RefChange, RemoteFacts]:
    """Assumptions instead of asking the remote: its default branch has a usual name, tags are
    new."""
    short = target.ref.removeprefix("refs/heads/")
    default = short if short in USUAL_DEFAULTS else USUAL_DEFAULTS[0]
    change = target.change
    if target.ref.startswith("refs/tags/") and change is RefChange.FAST_FORWARD:
        change = RefChange.CREATE
    return change, RemoteFacts(Ref(RefKind.BRANCH, (default,)))


def _caveats(git: GitGrant, target: PushTarget) -> tuple[str, ...]:
    caveats = []
    if target.change is RefChange.FAST_FORWARD and not git.force:
        caveats.append("refused unless it creates the branch or moves it forward")
    short = target.ref.removeprefix("refs/heads/")
    if git.protect is None and Glob(tuple(short.split("/"))) not in git.push:
        caveats.append("refused if it is the remote's default branch and `push` has no such name")
    if git.deny_paths:
        caveats.append(f"refused if it changes one of {len(git.deny_paths)} `deny_paths`")
    return tuple(caveats)


_NAMING = (
    Reason.READ_ONLY,
    Reason.REF_NOT_GRANTED,
    Reason.REF_PROTECTED,
    Reason.TAG_NOT_GRANTED,
)
"""Refusals of a push that end when the policy names the ref."""


def _push_fix(reason: Reason, service: Service, target: PushTarget) -> SuggestedFix | None:
    short = short_ref(target.ref)
    if short.startswith("refs/") and reason in _NAMING:
        return None  # no key names a ref that is neither branch nor tag, or is called like one
    if reason is Reason.READ_ONLY and target.ref.startswith("refs/tags/"):
        reason = Reason.TAG_NOT_GRANTED
    named = f"[{toml_string(short)}]"
    lifts = "named exactly, it is not protected by default"
    fixes = {
        Reason.READ_ONLY: SuggestedFix(service.rule, "push", named),
        Reason.REF_NOT_GRANTED: SuggestedFix(service.rule, "push", named),
        Reason.REF_PROTECTED: SuggestedFix(service.rule, "push", named, lifts),
        Reason.FORCE_NOT_GRANTED: SuggestedFix(service.rule, "force", "true"),
        Reason.DELETE_NOT_GRANTED: SuggestedFix(service.rule, "delete", "true"),
        Reason.TAG_NOT_GRANTED: SuggestedFix(service.rule, "tags", named),
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
