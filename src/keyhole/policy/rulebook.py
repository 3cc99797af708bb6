"""A policy compiled for deciding: names and paths are indexed once, decisions only look up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.decision import Route
from keyhole.model.host import Host, HostPattern
from keyhole.policy.path_index import PathIndex
from keyhole.policy.policy import Policy, RankedRule, Service, ServiceHost, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANY_PORT = 0


class HostRules(Struct, frozen=True):
    """The rules of one service on one host."""

    service: Service
    host: ServiceHost
    allows: PathIndex
    folding_allows: PathIndex
    denials: PathIndex
    bodies: PathIndex
    """Paths at which a request has a body although HTTP defines none, by the catalogue."""


class HostGrant(Struct, frozen=True):
    """The grant of a name and port, and its route."""

    route: Route
    rule: str
    passthrough: bool = False


class Rulebook:
    """The compiled form of one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._grants: dict[HostPattern, HostGrant] = {}
        self._names: dict[HostPattern, str] = {}
        self._services: dict[HostPattern, list[HostRules]] = {}
        for index, pattern in enumerate(policy.allow):
            self._grant(pattern, HostGrant(Route.TUNNEL, f"egress.allow[{index}]"))
        for service in policy.services:
            for index, pattern in enumerate(service.passthrough):
                rule = f"{service.rule}.unsafe_passthrough[{index}]"
                self._grant(pattern, HostGrant(Route.TUNNEL, rule, passthrough=True))
            for host in service.hosts:
                rules = _compile(service, host)
                for pattern in host.patterns:
                    self._grant(pattern, HostGrant(Route.INSPECT, service.rule))
                    self._services.setdefault(pattern, []).append(rules)
        self.connect = {(e.host, e.port): address for e, address in policy.upstream.connect}

    def grant(self, host: Host, port: int) -> HostGrant | None:
        """The grant of a name at a port. A more exact pattern wins over a wider one."""
        for pattern in _covering(host, port):
            found = self._grants.get(pattern)
            if found:
                return found
        return None

    def rule_for_name(self, host: Host) -> str | None:
        """The rule by which a name exists, at any port."""
        for pattern in _covering(host, _ANY_PORT):
            if pattern in self._names:
                return self._names[pattern]
        return None

    def services(self, host: Host, port: int) -> list[HostRules]:
        """The services that inspect this host: several where accounts share a forge."""
        for pattern in _covering(host, port):
            if pattern in self._services:
                return self._services[pattern]
        return []

    def pinned_by(self, host: Host, port: int) -> Service | None:
        """The service that holds clients of this host to one version of HTTP, if any does."""
        services = (rules.service for rules in self.services(host, port))
        return next((service for service in services if service.http), None)

    def rules_of_name(self, host: Host) -> list[HostRules]:
        """The services that inspect this name, at any port."""
        return [
            rules
            for pattern, found in self._services.items()
            if pattern.matches(host)
            for rules in found
        ]

    def inspected(self) -> Iterator[tuple[HostPattern, HostRules]]:
        """Every pattern of a service's host, with each service that inspects it."""
        for pattern, found in self._services.items():
            for rules in found:
                yield pattern, rules

    def _grant(self, pattern: HostPattern, grant: HostGrant) -> None:
        self._grants.setdefault(pattern, grant)
        name = HostPattern(pattern.host, pattern.subdomains, _ANY_PORT)
        self._names.setdefault(name, grant.rule)


def _covering(host: Host, port: int) -> Iterator[HostPattern]:
    """The patterns that could cover a name, from the exact one to the widest."""
    yield HostPattern(host, False, port)
    rest = host.name
    while "." in rest:
        rest = rest.partition(".")[2]
        yield HostPattern(Host(rest), True, port)


def _compile(service: Service, host: ServiceHost) -> HostRules:
    indexes = PathIndex(), PathIndex(), PathIndex()
    allows, folding, denials = indexes
    for ranked in host.rules:
        if ranked.tier in (Tier.DENY, Tier.GUARD):
            denials.add(ranked)
        elif ranked.folds:
            folding.add(ranked)
        else:
            allows.add(ranked)
    bodies = PathIndex()
    for rule in host.bodies:
        bodies.add(RankedRule(rule, Tier.ALLOW, "", folds=True))
    return HostRules(service, host, *indexes, bodies)
