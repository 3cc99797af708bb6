"""What a policy grants, as lines a person can judge before accepting it (I11).

Everything that reaches from the policy into the host is marked: commands that would be run, files
and variables that would be read, addresses and certificates that would be trusted. So is every
guarded endpoint that is opened, and a secret that goes to hosts nobody listed.

The lines on requests are made from the rules that decisions are made with, and not from the keys of
the file: whatever `keyhole why` allows is in some line. A test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.glob import Glob
from keyhole.model.secret import Source
from keyhole.model.value import dataclass
from keyhole.policy.policy import Tier
from keyhole.policy.schema import DEFAULT_DENY_PATHS, Api

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.inject.catalogue import Template
    from keyhole.model.host import HostPattern
    from keyhole.model.rule import AccessRule
    from keyhole.policy.policy import Policy, RankedRule, Service, ServiceHost

_REACHES = {
    Source.EXEC: "runs a command of this host",
    Source.FILE: "reads a file of this host",
    Source.UNSAFE_ENV: "reads a variable of this host",
    Source.KEYRING: "reads the keyring of this host",
    Source.LOGIN: "uses and renews a login of this host",
}

_CI_DEFINITIONS = tuple(Glob(tuple(path.split("/"))) for path in DEFAULT_DENY_PATHS)

MAX_CATALOGUE_HOSTS = 6
"""Hosts of a catalogue entry that are listed; `keyhole services show` has them all."""

MAX_CI_NAMED = 3
"""Of the default `deny_paths`, those that a policy leaves out and that are named one by one."""

_GUARDED = "can mint, list or move credentials or data"
OPENED = f"opens a guarded endpoint, which {_GUARDED}"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing granted. `alarm` says why it deserves a second look."""

    subject: str
    text: str
    alarm: str | None = None


def summarise(policy: Policy, known: Iterable[Template] = ()) -> tuple[Line, ...]:
    """The grants of a policy, in the order of its sections.

    `known` is the catalogue. With it, a service of the policy's own is marked as well where it
    covers what the catalogue guards at the same host.
    """
    box = policy.sandbox
    lines = [Line("sandbox", f"{box.runtime}, writes {_list(box.writable)}")]
    if box.image:
        lines.append(Line("sandbox", f"image {box.image}"))
    if box.readable:
        lines.append(Line("sandbox", f"reads {_list(box.readable)}"))
    if box.unsafe_paths:
        alarm = "opens paths that are usually refused"
        lines.append(Line("sandbox", f"unsafe paths {_list(box.unsafe_paths)}", alarm))
    if box.pass_env:
        alarm = "hands your variables to untrusted code"
        lines.append(Line("sandbox", f"passes {_list(box.pass_env)}", alarm))
    if box.env:
        lines.append(Line("sandbox", f"sets {_list(tuple(name for name, _ in box.env))}"))
    if box.volumes:
        named = _list(tuple(f"{place} ({name})" for place, name in box.volumes))
        alarm = "what one sandbox leaves there, others that name it find"
        lines.append(Line("sandbox", f"keeps {named}", alarm))
    if box.git_hooks:
        lines.append(Line("sandbox", "runs repository hooks inside"))
    if policy.allow:
        lines.append(Line("tunnels to", _list(tuple(str(p) for p in policy.allow))))
    if policy.presets:
        lines.append(Line("packages", f"reads of {_list(policy.presets)}"))
    templates = tuple(known)
    for service in policy.services:
        lines += _service(service, templates)
    upstream = policy.upstream
    if upstream.private:
        names = _list(tuple(p.name for p in upstream.private))
        lines.append(Line("upstream", f"private addresses for {names}", "reaches your network"))
    for endpoint, address in upstream.connect:
        lines.append(Line("upstream", f"{endpoint} is dialled at {address}", "redirects traffic"))
    if upstream.ca_file:
        alarm = "can vouch for any host"
        lines.append(Line("upstream", f"trusts certificates of {upstream.ca_file}", alarm))
    if upstream.proxy:
        lines.append(Line("upstream", f"goes through {upstream.proxy}", "redirects traffic"))
    return tuple(lines)


def _service(service: Service, known: tuple[Template, ...]) -> list[Line]:
    subject = service.rule.removeprefix("services.")
    lines = [Line(subject, f"inspects {_hosts(service, service.patterns)}")]
    if service.secret:
        alarms = [_REACHES.get(service.secret.source)]
        alarms.append("sends it where this policy says" if service.chose_hosts else None)
        alarm = ", ".join(a for a in alarms if a) or None
        lines.append(Line(subject, f"secret {service.secret}", alarm))
    lines += [
        Line(subject, f"secret for {pattern}", f"any {pattern.name} host gets it")
        for pattern in _wild_with_secret(service)
    ]
    if service.passthrough:
        tunnelled = _list(tuple(str(p) for p in service.passthrough))
        lines.append(Line(subject, f"tunnels {tunnelled}", "not inspected"))
    if service.returned:
        returned = _list(tuple(map(str, service.returned)))
        alarm = "what hands out a session or tells a digest reaches untrusted code"
        lines.append(Line(subject, f"returns {returned}", alarm))
    if service.unsafe_keep:
        kept = _list(tuple(slot.name for slot in service.unsafe_keep))
        lines.append(Line(subject, f"keeps the client's {kept}", "it says itself who asks"))
    lines += _git(subject, service)
    lines += _requests(subject, service, known)
    return lines


def _wild_with_secret(service: Service) -> list[HostPattern]:
    """Attack: whoever can register one name under it has the secret sent there."""
    return [
        pattern
        for host in service.hosts
        if (service.secret or host.credential) and (host.inject or host.git_inject)
        for pattern in host.patterns
        if pattern.subdomains
    ]


def _git(subject: str, service: Service) -> list[Line]:
    git = service.git
    if git is None:
        return []
    lines = [Line(subject, f"repositories {_list(tuple(map(str, sorted(git.repos))))}")]
    if git.push:
        kinds = [k for k in ("create", "force", "delete") if getattr(git, k)]
        alarm = "can rewrite or remove history" if git.force or git.delete else None
        ways = ", ".join(["forward", *kinds])
        text = f"pushes {_list(tuple(map(str, git.push)))} ({ways})"
        lines.append(Line(subject, text, alarm))
    if git.tags:
        lines.append(Line(subject, f"creates tags {_list(tuple(map(str, git.tags)))}"))
    if git.protect is not None and git.push:
        protected = _list(tuple(map(str, git.protect)))
        lines.append(Line(subject, f"protects {protected}", "and so not the default branch"))
    if git.push and (free := [str(p) for p in _CI_DEFINITIONS if p not in git.deny_paths]):
        what = _list(tuple(free)) if len(free) <= MAX_CI_NAMED else "CI definitions"
        lines.append(Line(subject, f"pushes {what}", "services run it with the repo's secrets"))
    if git.push_options and (git.push or git.tags):
        options = _list(tuple(sorted(git.push_options)))
        lines.append(Line(subject, f"push options {options}", "a forge obeys them: some merge"))
    lines.append(Line(subject, f"API {git.api}"))
    return lines


def _requests(subject: str, service: Service, known: tuple[Template, ...]) -> list[Line]:
    """What may be asked of which hosts, but for what an `api` level brings, which is named."""
    places: dict[tuple[str, ...], list[HostPattern]] = {}
    alarms: dict[str, str] = {}
    for host in service.hosts:
        rules = [r for r in host.rules if r.tier in _ALLOWING and r.level is Api.OFF]
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
            lines.append(Line(subject, f"allows {_list(plain)}{at}"))
        lines += [
            Line(subject, f"allows {text}{at}", alarms[text]) for text in texts if text in alarms
        ]
    return lines


_ALLOWING = (Tier.OPENING, Tier.ALLOW)


def _alarm(
    ranked: RankedRule, host: ServiceHost, service: Service, known: tuple[Template, ...]
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
                return f"covers what is guarded in the service {template.name}, which {_GUARDED}"
    return None


def _guards(template: Template, host: ServiceHost) -> Iterable[AccessRule]:
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
