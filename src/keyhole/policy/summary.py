"""A policy's grants as lines that a person can judge before accepting it (I11).

Everything that reaches from the policy into the host is marked: commands that would be run, files
and variables that would be read, addresses and certificates that would be trusted. So is every
guarded endpoint that is opened, and a secret that goes to hosts that are not listed one by one.

The lines on requests are made from the rules that decide, not from the keys of the file: a line
covers each request that `keyhole why` allows. A test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.glob import Glob
from keyhole.model.rule import AccessRule
from keyhole.model.secret import SecretScheme
from keyhole.policy.policy import Tier
from keyhole.policy.schema import DEFAULT_DENY_PATHS, ApiAccess, ChangesMode, HomeMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.inject.catalogue import ServiceTemplate
    from keyhole.model.host import HostPattern
    from keyhole.policy.mcp_grant import McpGrant
    from keyhole.policy.policy import (
        Approvals,
        GitGrant,
        Policy,
        RankedRule,
        Sandbox,
        Service,
        ServiceHost,
    )

_REACHES = {
    SecretScheme.EXEC: "runs a command of this host",
    SecretScheme.FILE: "reads a file of this host",
    SecretScheme.UNSAFE_ENV: "reads a variable of this host",
    SecretScheme.KEYRING: "reads the keyring of this host",
    SecretScheme.LOGIN: "uses and renews a login of this host",
    SecretScheme.GITHUB_APP: "mints tokens by an app's key in the store",
}

_CI_DEFINITIONS = tuple(Glob(tuple(path.split("/"))) for path in DEFAULT_DENY_PATHS)

MAX_CATALOGUE_HOSTS = 6
"""Hosts of a catalogue entry that are listed; `keyhole services show` has them all."""

MAX_CI_NAMED = 3
"""The most patterns of the default `deny_paths` that are named one by one if a policy leaves them
out."""

_GUARDED = "can mint, list or move credentials or data"
OPENED = f"opens a guarded endpoint, which {_GUARDED}"


class GrantLine(Struct, frozen=True):
    """One grant. `alarm` is the reason for a second look."""

    subject: str
    text: str
    alarm: str | None = None


def summarise(policy: Policy, known: Iterable[ServiceTemplate] = ()) -> tuple[GrantLine, ...]:
    """The grants of a policy, in the order of its sections.

    `known` are the catalogue's entries that share a host with the policy. With them, a service of
    the policy's own is marked as well where it covers what the catalogue guards at the same host.
    """
    box = policy.sandbox
    if box.changes is ChangesMode.REVIEW:
        does = f"works on a view of {_list(box.writable)}, whose changes you review"
    else:
        does = f"writes {_list(box.writable)}"
    lines = [GrantLine("sandbox", f"{box.runtime}, {does}")]
    if box.image:
        lines.append(GrantLine("sandbox", f"image {box.image}"))
    if box.readable:
        lines.append(GrantLine("sandbox", f"reads {_list(box.readable)}"))
    if box.unsafe_paths:
        alarm = "opens paths that are usually refused"
        lines.append(GrantLine("sandbox", f"unsafe paths {_list(box.unsafe_paths)}", alarm))
    if box.pass_env:
        alarm = "hands your variables to untrusted code"
        lines.append(GrantLine("sandbox", f"passes {_list(box.pass_env)}", alarm))
    if box.env:
        lines.append(GrantLine("sandbox", f"sets {_list(tuple(name for name, _ in box.env))}"))
    if box.volumes:
        named = _list(tuple(f"{place} ({name})" for place, name in box.volumes))
        alarm = "what one sandbox leaves there, others that name it find"
        lines.append(GrantLine("sandbox", f"keeps {named}", alarm))
    if box.home is HomeMode.KEEP:
        alarm = "what one run leaves there, the next finds"
        lines.append(GrantLine("sandbox", "keeps its home for later runs", alarm))
    if box.caches:
        lines.append(GrantLine("sandbox", f"keeps caches of {_list(box.caches)}"))
    if box.git_hooks:
        lines.append(GrantLine("sandbox", "runs repository hooks inside"))
    if box.sign:
        alarm = f"what untrusted code commits is signed as {box.git_user}"
        lines.append(GrantLine("sandbox", f"signs commits with {box.sign}", alarm))
    lines += _ports(box)
    if policy.allow:
        lines.append(GrantLine("tunnels to", _list(tuple(str(p) for p in policy.allow))))
    if policy.presets:
        lines.append(GrantLine("packages", f"reads of {_list(policy.presets)}"))
    templates = tuple(known)
    for service in policy.services:
        lines += _service(service, templates)
    upstream = policy.upstream
    if upstream.private:
        names = _list(tuple(p.name for p in upstream.private))
        lines.append(
            GrantLine("upstream", f"private addresses for {names}", "reaches your network")
        )
    for endpoint, address in upstream.connect:
        lines.append(
            GrantLine("upstream", f"{endpoint} is dialled at {address}", "redirects traffic")
        )
    if upstream.ca_file:
        alarm = "can vouch for any host"
        lines.append(GrantLine("upstream", f"trusts certificates of {upstream.ca_file}", alarm))
    if upstream.proxy:
        lines.append(GrantLine("upstream", f"goes through {upstream.proxy}", "redirects traffic"))
    lines += _approvals(policy.approvals)
    return tuple(lines)


def _approvals(approvals: Approvals) -> list[GrantLine]:
    lines = []
    if approvals.ask:
        asked = f"asks you about {_list(approvals.ask)} that no rule names"
        lines.append(GrantLine("approvals", asked))
    if approvals.command:
        alarm = "runs a command of this host, which may answer for you"
        lines.append(GrantLine("approvals", f"asks {approvals.command}", alarm))
    return lines


def _ports(box: Sandbox) -> list[GrantLine]:
    lines = []
    if box.publish:
        ports = _list(tuple(str(each.inner) for each in box.publish))
        alarm = "your browser runs pages of untrusted code, which can send anything anywhere"
        lines.append(GrantLine("sandbox", f"publishes port {ports}", alarm))
    if box.host_ports:
        ports = _list(tuple(map(str, box.host_ports)))
        alarm = "untrusted code uses what listens there on this host"
        lines.append(GrantLine("sandbox", f"reaches port {ports} of this host", alarm))
    if box.inbound:
        alarm = "whatever connects to untrusted code is given what that code sends"
        peers = _list(tuple(map(str, box.inbound)))
        lines.append(GrantLine("sandbox", f"lets peers connect to port {peers}", alarm))
    return lines


def _service(service: Service, known: tuple[ServiceTemplate, ...]) -> list[GrantLine]:
    subject = service.rule.removeprefix("services.")
    lines = [GrantLine(subject, f"inspects {_hosts(service, service.patterns)}")]
    if service.secret:
        alarms = [_REACHES.get(service.secret.source)]
        alarms.append("sends it where this policy says" if service.chose_hosts else None)
        alarm = ", ".join(a for a in alarms if a) or None
        lines.append(GrantLine(subject, f"secret {service.secret}", alarm))
    lines += [
        GrantLine(subject, f"secret for {pattern}", f"any {pattern.name} host gets it")
        for pattern in _wild_with_secret(service)
    ]
    if service.passthrough:
        tunnelled = _list(tuple(str(p) for p in service.passthrough))
        lines.append(GrantLine(subject, f"tunnels {tunnelled}", "not inspected"))
    if service.http:
        lines.append(GrantLine(subject, f"clients speak HTTP/{service.http} alone"))
    if service.returned:
        returned = _list(tuple(map(str, service.returned)))
        alarm = "what hands out a session or tells a digest reaches untrusted code"
        lines.append(GrantLine(subject, f"returns {returned}", alarm))
    if service.unsafe_keep:
        kept = _list(tuple(slot.name for slot in service.unsafe_keep))
        lines.append(GrantLine(subject, f"keeps the client's {kept}", "it says itself who asks"))
    lines += _git(subject, service, known)
    lines += _mcp(subject, service.mcp) if service.mcp else []
    lines += _model(subject, service) if service.known_features else []
    lines += _operations(subject, service) if service.has_operations else []
    lines += _requests(subject, service, known)
    return lines


def _wild_with_secret(service: Service) -> list[HostPattern]:
    """Wildcard hosts that get a secret. Attack: a person who can register one name under the
    wildcard has the secret sent there."""
    return [
        pattern
        for host in service.hosts
        if (service.secret or host.credential) and (host.inject or host.git_inject)
        for pattern in host.patterns
        if pattern.subdomains
    ]


def _git(subject: str, service: Service, known: tuple[ServiceTemplate, ...]) -> list[GrantLine]:
    git = service.git
    if git is None:
        return []
    repositories = _list(tuple(map(str, sorted(git.repos))))
    reads = _git_alarm(service, git, "git-upload-pack", known)
    lines = [GrantLine(subject, f"repositories {repositories}", reads)]
    writes = _git_alarm(service, git, "git-receive-pack", known)
    if git.push:
        kinds = [k for k in ("create", "force", "delete") if getattr(git, k)]
        alarms = ["can rewrite or remove history" if git.force or git.delete else None, writes]
        alarm = ", ".join(a for a in alarms if a) or None
        ways = ", ".join(["forward", *kinds])
        text = f"pushes {_list(tuple(map(str, git.push)))} ({ways})"
        lines.append(GrantLine(subject, text, alarm))
    if git.tags:
        tags = _list(tuple(map(str, git.tags)))
        lines.append(GrantLine(subject, f"creates tags {tags}", writes))
    if git.protect is not None and git.push:
        protected = _list(tuple(map(str, git.protect)))
        lines.append(GrantLine(subject, f"protects {protected}", "and so not the default branch"))
    if git.push and (free := [str(p) for p in _CI_DEFINITIONS if p not in git.deny_paths]):
        what = _list(tuple(free)) if len(free) <= MAX_CI_NAMED else "CI definitions"
        lines.append(
            GrantLine(subject, f"pushes {what}", "services run it with the repo's secrets")
        )
    if git.push_options and (git.push or git.tags):
        options = _list(tuple(sorted(git.push_options)))
        lines.append(
            GrantLine(subject, f"push options {options}", "a forge obeys them: some merge")
        )
    lines.append(GrantLine(subject, f"API {git.api}"))
    return lines


def _model(subject: str, service: Service) -> list[GrantLine]:
    """What the provider of a model may do by itself."""
    lines = []
    if service.features:
        words = _list(service.features)
        lines.append(GrantLine(subject, f"opens {words}", "the provider does it by itself"))
    if service.closed_features:
        lines.append(GrantLine(subject, f"keeps closed {', '.join(service.closed_features)}"))
    if service.models:
        lines.append(GrantLine(subject, f"models {_list(service.models)}"))
    if service.max_tokens:
        lines.append(
            GrantLine(subject, f"answers of {service.max_tokens} tokens at most for each request")
        )
    return lines


def _operations(subject: str, service: Service) -> list[GrantLine]:
    """What requests may ask for where method and path do not tell."""
    lines = []
    if service.operations or service.names_operations:
        lines.append(GrantLine(subject, f"operations {_list(service.operations)}"))
    if service.closed_operations:
        lines.append(GrantLine(subject, f"keeps closed {', '.join(service.closed_operations)}"))
    return lines


def _mcp(subject: str, grant: McpGrant) -> list[GrantLine]:
    """What may be asked of a server of MCP, which its rules on paths do not tell."""
    lines = [GrantLine(subject, f"tools {_list(tuple(map(str, grant.tools)))}")]
    if grant.pin:
        lines.append(GrantLine(subject, "refuses tools that are new or have changed"))
    if grant.resources:
        lines.append(GrantLine(subject, f"resources {_list(tuple(map(str, grant.resources)))}"))
    if grant.prompts:
        lines.append(GrantLine(subject, f"prompts {_list(grant.prompts)}"))
    if grant.endpoints:
        lines.append(GrantLine(subject, f"messages go to {_list(grant.endpoints)}"))
    if grant.server_requests:
        asked = _list(tuple(sorted(grant.server_requests)))
        alarm = "the server may ask the agent, its model or you"
        lines.append(GrantLine(subject, f"answers the server's {asked}", alarm))
    return lines


def _git_alarm(
    service: Service, git: GitGrant, endpoint: str, known: tuple[ServiceTemplate, ...]
) -> str | None:
    """The alarm for a git grant, which is decided before any rule.

    Attack: `forge` and `push` at a host that the catalogue has only for downloads let requests pass
    that it guards there, without an `allow` that could be marked.
    """
    asked = [
        AccessRule.parse(f"POST /{repository}{suffix}/{endpoint}")
        for repository in sorted(git.repos)
        for suffix in ("", ".git")
    ]
    for template in known:
        guards = [g for host in service.hosts if host.git for g in _guards(template, host)]
        if any(guard.overlaps(rule) for guard in guards for rule in asked):
            return _covers(template)
    return None


def _requests(
    subject: str, service: Service, known: tuple[ServiceTemplate, ...]
) -> list[GrantLine]:
    """Allowed requests by host. Those that an `api` level adds are named by the level."""
    places: dict[tuple[str, ...], list[HostPattern]] = {}
    alarms: dict[str, str] = {}
    for host in service.hosts:
        rules = [r for r in host.rules if r.tier in _ALLOWING and r.level is ApiAccess.OFF]
        texts = tuple(sorted({ranked.rule.text for ranked in rules}))
        places.setdefault(texts, []).extend(host.patterns)
        for ranked in rules:
            alarm = _alarm(ranked, host, service, known)
            if alarm and alarms.get(ranked.rule.text) != OPENED:
                alarms[ranked.rule.text] = alarm
    lines = []
    for texts, patterns in places.items():
        at = f" at {_hosts(service, tuple(patterns))}" if len(places) > 1 else ""
        plain = tuple(text for text in texts if text not in alarms)
        if plain:
            lines.append(GrantLine(subject, f"allows {_list(plain)}{at}"))
        lines += [
            GrantLine(subject, f"allows {text}{at}", alarms[text])
            for text in texts
            if text in alarms
        ]
    return lines


_ALLOWING = (Tier.OPENING, Tier.ALLOW)


def _alarm(
    ranked: RankedRule, host: ServiceHost, service: Service, known: tuple[ServiceTemplate, ...]
) -> str | None:
    if ranked.tier is Tier.OPENING:
        return OPENED
    if not ranked.id.startswith("services."):
        return None  # the catalogue's own, whose entries know of one another
    for template in known:
        if template.name == service.template:
            continue  # its guards hold here
        for guard in _guards(template, host):
            if guard.overlaps(ranked.rule):
                return _covers(template)
    return None


def _covers(template: ServiceTemplate) -> str:
    return f"covers what is guarded in the service {template.name}, which {_GUARDED}"


def _guards(template: ServiceTemplate, host: ServiceHost) -> Iterable[AccessRule]:
    return (
        guard
        for entry in template.hosts
        if any(mine.overlaps(theirs) for mine in host.patterns for theirs in entry.hosts)
        for guard in entry.deny
    )


def _hosts(service: Service, patterns: tuple[HostPattern, ...]) -> str:
    names = tuple(str(p) for p in patterns)
    if not service.chose_hosts and len(names) > MAX_CATALOGUE_HOSTS:
        names = (*names[:MAX_CATALOGUE_HOSTS], f"{len(names) - MAX_CATALOGUE_HOSTS} more")
    return _list(names)


def _list(items: tuple[str, ...]) -> str:
    return ", ".join(items) if items else "nothing"
