"""What a policy grants, as lines a person can judge before accepting it (I11).

Everything that reaches from the policy into the host is marked: commands that would be run, files
and variables that would be read, addresses and certificates that would be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.glob import Glob
from keyhole.model.secret import Source
from keyhole.model.value import dataclass
from keyhole.policy.policy import Tier
from keyhole.policy.schema import DEFAULT_DENY_PATHS

if TYPE_CHECKING:
    from keyhole.policy.policy import Policy, Service

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


@dataclass(frozen=True, slots=True)
class Line:
    """One thing granted. `alarm` says why it deserves a second look."""

    subject: str
    text: str
    alarm: str | None = None


def summarise(policy: Policy) -> tuple[Line, ...]:
    """The grants of a policy, in the order of its sections."""
    box = policy.sandbox
    lines = [Line("sandbox", f"{box.runtime}, writes {_list(box.writable)}")]
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
    for service in policy.services:
        lines += _service(service)
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


def _service(service: Service) -> list[Line]:
    subject = service.rule.removeprefix("services.")
    names = tuple(str(p) for p in service.patterns)
    if not service.chose_hosts and len(names) > MAX_CATALOGUE_HOSTS:
        names = (*names[:MAX_CATALOGUE_HOSTS], f"{len(names) - MAX_CATALOGUE_HOSTS} more")
    lines = [Line(subject, f"inspects {_list(names)}")]
    if service.secret:
        alarms = [_REACHES.get(service.secret.source)]
        alarms.append("sends it where this policy says" if service.chose_hosts else None)
        alarm = ", ".join(a for a in alarms if a) or None
        lines.append(Line(subject, f"secret {service.secret}", alarm))
    if service.passthrough:
        tunnelled = _list(tuple(str(p) for p in service.passthrough))
        lines.append(Line(subject, f"tunnels {tunnelled}", "not inspected"))
    if service.unsafe_keep:
        kept = _list(tuple(slot.name for slot in service.unsafe_keep))
        lines.append(Line(subject, f"keeps the client's {kept}", "it says itself who asks"))
    allowed = sorted(
        {
            r.rule.text
            for h in service.hosts
            for r in h.rules
            if r.tier in (Tier.OPENING, Tier.ALLOW)
        }
    )
    if allowed and not service.git:
        lines.append(Line(subject, f"allows {_list(tuple(allowed))}"))
    git = service.git
    if git:
        lines.append(Line(subject, f"repositories {_list(tuple(map(str, sorted(git.repos))))}"))
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
        if git.push and not set(_CI_DEFINITIONS) <= set(git.deny_paths):
            lines.append(Line(subject, "pushes CI definitions", "they run with the repo's secrets"))
        lines.append(Line(subject, f"API {git.api}"))
    return lines


def _list(items: tuple[str, ...]) -> str:
    return ", ".join(items) if items else "nothing"
