"""Builds a Policy from settings, and checks conditions that depend on more than one key."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.policy.inbound import MAX_INBOUND
from keyhole.policy.kinds import nearest
from keyhole.policy.policy import Approvals, Limits, Policy, Sandbox, Service, Tier, Upstream
from keyhole.policy.ports import MAX_PORTS, refuse_ambiguous
from keyhole.policy.schema import BY_PATH, HomeMode, RuntimeName
from keyhole.policy.services import ServiceSettings, build_service
from keyhole.policy.signing import grants_push

if TYPE_CHECKING:
    from keyhole.inject.catalogue import Catalogue
    from keyhole.inject.prices import ModelPrice
    from keyhole.policy.document import Path, TomlDocument
    from keyhole.policy.fault import PolicyFault
    from keyhole.policy.policy import RankedRule, ServiceHost
    from keyhole.policy.reader import PolicySetting

CoveredSuffix = Callable[[str], str | None]
"""The public suffix that `*.NAME` would cover, if any."""


MAX_RULE_PAIRS = 50_000
"""Pairs of rules that are compared where two services share a host: about a second (I9)."""


class PolicyContext(Struct, frozen=True):
    """The facts from outside that the policy needs: the catalogue, the suffix list, preset
    names."""

    catalogue: Catalogue
    covered_suffix: CoveredSuffix
    preset_names: tuple[str, ...]


class PolicyBuilder(Struct):
    """Builds one policy and collects the faults and notes on the way."""

    document: TomlDocument
    project: dict[Path, PolicySetting]
    user: dict[Path, PolicySetting]
    world: PolicyContext
    faults: list[PolicyFault] = field(default_factory=list)
    notes: list[PolicyFault] = field(default_factory=list)

    def build(self) -> Policy:
        """The policy; to be used only when `faults` stayed empty."""
        if "version" not in self.document.tree:
            self._fault((), "the policy does not say its version", "version = 1")
        services = tuple(self._services())
        policy = Policy(
            sandbox=self._sandbox(),
            limits=Limits(**self._all_of("limits", Limits)),
            allow=self._get("egress", "allow"),
            presets=self._get("egress", "presets"),
            services=services,
            upstream=Upstream(
                **{name: self._get("upstream", name) for name in Upstream.__struct_fields__}
            ),
            approvals=Approvals(**self._all_of("approvals", Approvals)),
        )
        self._check_presets(policy.presets)
        self._check_suffixes()
        self._check_overlaps(policy)
        self._check_default_secrets(policy)
        self._check_signing(policy)
        self._note_unused(policy)
        return policy

    def _user_prices(self, prefix: tuple[str, ...]) -> tuple[ModelPrice, ...]:
        found = self.user.get((*prefix, "prices"))
        return found.value if found else ()

    def _get(self, *path: str) -> Any:  # noqa: ANN401 - of the key's kind
        """The project's value, else the user's, else the default."""
        setting = self.project.get(path) or self.user.get(path)
        return setting.value if setting else BY_PATH[path].default

    def _all_of(self, table: str, made: type[Struct]) -> dict[str, Any]:
        return {name: self._get(table, name) for name in made.__struct_fields__}

    def _sandbox(self) -> Sandbox:
        sandbox = Sandbox(**self._all_of("sandbox", Sandbox))
        if sandbox.image and sandbox.runtime is RuntimeName.BWRAP:
            self._fault(
                ("sandbox", "image"), "an image is for docker or podman", 'runtime = "docker"'
            )
        if sandbox.volumes and sandbox.runtime is RuntimeName.BWRAP:
            self._fault(
                ("sandbox", "volumes"), "volumes are for docker or podman", 'runtime = "docker"'
            )
        if sandbox.runtime is not RuntimeName.BWRAP:
            advice = (
                "keep a directory of a container by sandbox.volumes, or name the sandbox: `new`"
            )
            if sandbox.home is HomeMode.KEEP:
                self._fault(("sandbox", "home"), "a kept home is for bwrap", advice)
            if sandbox.caches:
                self._fault(("sandbox", "caches"), "kept caches are for bwrap", advice)
        self._check_ports(sandbox)
        return sandbox

    def _check_signing(self, policy: Policy) -> None:
        sandbox, key = policy.sandbox, ("sandbox", "sign")
        if not sandbox.sign:
            return
        if sandbox.git_user is None:
            why = "a key signs for one person, whom git_user names"
            self._fault(key, why, 'git_user = "Name <mail>"')
        if not grants_push(policy):
            self._fault(key, "no service grants a push, so no commit needs a signature")

    def _check_ports(self, sandbox: Sandbox) -> None:
        try:
            refuse_ambiguous(sandbox.publish, sandbox.host_ports)
        except Unparsable as error:
            self._fault(("sandbox", "publish"), error.message)
        if len(sandbox.host_ports) > MAX_PORTS:
            self._fault(("sandbox", "host_ports"), f"at most {MAX_PORTS} ports are used")
        if len(sandbox.inbound) > MAX_INBOUND:
            self._fault(("sandbox", "inbound"), f"it has at most {MAX_INBOUND} entries")

    def _services(self) -> Iterable[Service]:
        tables = self.document.tree.get("services", {})
        for name, table in tables.items() if isinstance(tables, dict) else ():
            if not isinstance(table, dict):
                continue
            prefix = ("services", name)
            written = {
                ".".join(map(str, path[2:])): setting
                for path, setting in self.project.items()
                if path[:2] == prefix
            }
            words = ServiceSettings(
                name,
                frozenset(table),
                written,
                self.user.get((*prefix, "secret")),
                self._user_prices(prefix),
                self._fault,
            )
            service = build_service(words, self.world.catalogue)
            if service:
                yield service

    def _check_presets(self, presets: tuple[str, ...]) -> None:
        known = list(self.world.preset_names)
        for index, name in enumerate(presets):
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean '{close}'?" if close else f"known: {', '.join(known)}"
                self._fault(("egress", "presets", index), f"there is no preset '{name}'", hint)

    def _check_suffixes(self) -> None:
        for path, setting in self.project.items():
            if not isinstance(setting.value, tuple):
                continue
            for index, pattern in enumerate(setting.value):
                if not isinstance(pattern, HostPattern) or not pattern.subdomains:
                    continue
                suffix = self.world.covered_suffix(pattern.host.name)
                if suffix:
                    self._fault(
                        (*path, index),
                        f"{pattern} covers the public suffix '{suffix}', "
                        "under which anyone can have a name",
                        "name the hosts, or a wildcard below one registered name",
                    )

    def _check_overlaps(self, policy: Policy) -> None:
        for index, pattern in enumerate(policy.allow):
            for service in policy.services:
                clash = next((p for p in service.patterns if p.overlaps(pattern)), None)
                if clash:
                    self._fault(
                        ("egress", "allow", index),
                        f"{pattern} overlaps {clash} of services.{service.name}: "
                        "a host is tunnelled or inspected, not both",
                        f"remove it, or list it in services.{service.name}.unsafe_passthrough",
                    )
        for one, two in itertools.combinations(policy.services, 2):
            self._check_pair(one, two)

    def _check_pair(self, one: Service, two: Service) -> None:
        clashes = [
            (p, q) for p in one.patterns for q in two.patterns if p.overlaps(q)
        ]  # fmt: skip
        if not clashes:
            return
        self._check_passthrough(one, two)
        self._check_passthrough(two, one)
        if one.git and two.git and set(one.patterns) == set(two.patterns):
            # Two accounts on one forge: the repository chooses.
            self._check_versions(one, two, clashes[0][1])
            repos = one.git.repos & two.git.repos
            if not repos:
                return
            message = f"{min(repos)} is granted by services.{one.name} too"
            self._fault(("services", two.name, "repos"), message, "grant it once")
            return
        self._check_versions(one, two, clashes[0][1])
        for host, other in itertools.product(one.hosts, two.hosts):
            shared = [(p, q) for p in host.patterns for q in other.patterns if p.overlaps(q)]
            if shared:
                # Two that differ are a mistake whatever the others are.
                at = next((pair for pair in shared if pair[0] != pair[1]), shared[0])
                self._check_shared(one, host, two, other, at)

    def _check_passthrough(self, one: Service, two: Service) -> None:
        """Attack: a tunnel of one service, which no rule sees, to a host that another inspects."""
        for index, pattern in enumerate(one.passthrough):
            inspected = any(pattern.overlaps(p) for p in two.patterns)
            if inspected and pattern not in two.passthrough:
                self._fault(
                    ("services", one.name, "unsafe_passthrough", index),
                    f"{pattern} is a host of services.{two.name} too: "
                    "a host is tunnelled or inspected, not both",
                    f"remove it, or list it in services.{two.name}.unsafe_passthrough as well",
                )

    def _check_shared(
        self,
        one: Service,
        host: ServiceHost,
        two: Service,
        other: ServiceHost,
        at: tuple[HostPattern, HostPattern],
    ) -> None:
        """Two services may share a host if only one of them allows each request: then it is clear
        which credential is sent."""
        message = f"{at[1]} is a host of services.{one.name} too"
        pairs = list(itertools.islice(_allowing_pairs(host, other), MAX_RULE_PAIRS + 1))
        both = next((pair for pair in pairs if pair[0].rule.shares(pair[1].rule)), None)
        if both is not None:
            message += f", and {both[1].id} allows what {both[0].id} does"
        elif host.git or other.git:
            message += ", and git is served there"
        elif at[0] != at[1]:
            # The more exact pattern alone would count, and the other service's rules would not.
            message += f", by {at[0]}: only hosts that both name alike can be shared"
        elif len(pairs) > MAX_RULE_PAIRS:
            message += ", and their rules are too many to compare"
        else:
            return
        hint = "two services share a host where no request is allowed by both"
        self._fault(("services", two.name), message, hint)

    def _check_versions(self, one: Service, two: Service, shared: HostPattern) -> None:
        """TLS agrees on the version before a request can choose the service."""
        if one.http and two.http and one.http is not two.http:
            self._fault(
                ("services", two.name, "http"),
                f'services.{one.name} has http = "{one.http}" for {shared} too: a connection is '
                "made before it is known which of the two it is for",
                "pin one version for both, or leave `http` out",
            )

    def _check_default_secrets(self, policy: Policy) -> None:
        """I1: a cloned policy must not send a secret, which it does not even name, to another
        host."""
        upstream = policy.upstream
        for service in policy.services:
            if not service.secret or ("services", service.name, "secret") in self.project:
                continue
            hint = "name the secret in this policy only if you mean it to go there"
            for endpoint, _ in upstream.connect:
                if any(p.matches(endpoint.host) for p in service.patterns):
                    self._fault(
                        ("upstream", "connect", str(endpoint)),
                        f"{endpoint} is redirected, and your default secret of "
                        f"services.{service.name} would go there",
                        hint,
                    )
            if upstream.proxy and upstream.ca_file:
                self._fault(
                    ("upstream", "proxy"),
                    "a proxy with certificates of its own could read your default secret of "
                    f"services.{service.name}",
                    hint,
                )

    def _note_unused(self, policy: Policy) -> None:
        patterns = [*policy.allow, *(p for s in policy.services for p in s.patterns)]
        for endpoint, _ in policy.upstream.connect:
            if not any(p.port == endpoint.port and p.matches(endpoint.host) for p in patterns):
                self._note(
                    ("upstream", "connect", str(endpoint)), f"no rule allows {endpoint}", None
                )
        for service in policy.services:
            if service.git and not service.git.repos:
                self._note(
                    ("services", service.name),
                    f"services.{service.name} grants no repository",
                    'repos = ["owner/name"]',
                )

    def _fault(self, path: Path, message: str, hint: str | None = None) -> None:
        self.faults.append(self._at(path, message, hint))

    def _note(self, path: Path, message: str, hint: str | None) -> None:
        self.notes.append(self._at(path, message, hint))

    def _at(self, path: Path, message: str, hint: str | None) -> PolicyFault:
        setting = self.project.get(path[:-1])
        last = path[-1] if path else None
        if setting and isinstance(last, int) and last < len(setting.indices):
            path = (*path[:-1], setting.indices[last])
        span = self.document.values.get(path) or self.document.keys.get(path)
        return self.document.fault(span, message, hint)


def _allowing_pairs(one: ServiceHost, two: ServiceHost) -> Iterator[tuple[RankedRule, RankedRule]]:
    """All pairs of an allow rule of one host and one of the other."""
    allowing = (Tier.OPENING, Tier.ALLOW)
    for first in one.rules:
        for second in two.rules:
            if first.tier in allowing and second.tier in allowing:
                yield first, second
