"""Adds presets to a policy: each becomes a service that only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from keyhole.policy.policy import OF_PRESETS, Policy, RankedRule, Service, ServiceHost, Tier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.inject.preset import Preset, PresetHost


def join_presets(policy: Policy, presets: Iterable[Preset]) -> tuple[Policy, tuple[str, ...]]:
    """The policy with its presets' hosts, and notes on them for a person.

    An entry of the file for a host wins over a preset, which then leaves that host out.
    Presets may share a host (one mirror for several languages): each brings its own rules, and
    those that come with a credential are tried first.
    """
    notes: list[str] = []
    services: list[Service] = []
    taken = [
        *((p, "egress.allow") for p in policy.allow),
        *((p, s.rule) for s in policy.services for p in s.patterns),
    ]
    for preset in presets:
        name = f"{OF_PRESETS}{preset.name}"
        notes += [f"{name}: {note}" for note in preset.notes]
        hosts = []
        for host in preset.hosts:
            rule = next((r for p, r in taken if p.overlaps(host.pattern)), None)
            if rule:
                notes.append(f"{name}: {host.pattern} is left to {rule}")
            else:
                hosts.append(_host(name, host))
        title = f"packages: {preset.name}"
        services.append(Service(name, title, tuple(hosts), sources=preset.sources))
    services.sort(key=lambda service: not any(host.credential for host in service.hosts))
    return replace(policy, services=(*policy.services, *services)), tuple(notes)


def _host(name: str, host: PresetHost) -> ServiceHost:
    return ServiceHost(
        patterns=(host.pattern,),
        rules=tuple(
            RankedRule(rule, Tier.ALLOW, f"{name}.allow[{i}]") for i, rule in enumerate(host.allow)
        ),
        inject=(host.inject,) if host.inject else (),
        encoded_slash=True,  # scoped npm names are asked for as @scope%2fname
        credential=host.credential,
    )
