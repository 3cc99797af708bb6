"""From settings to a Policy: what needs more than one key to judge is judged here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from keyhole.model.host import HostPattern
from keyhole.model.value import dataclass, field, field_names
from keyhole.policy.kinds import nearest
from keyhole.policy.policy import Limits, Policy, Sandbox, Service, Upstream
from keyhole.policy.schema import BY_PATH, Runtime
from keyhole.policy.services import Words, build_service

if TYPE_CHECKING:
    from keyhole.inject.catalogue import Catalogue
    from keyhole.policy.document import Document, Path
    from keyhole.policy.fault import Fault
    from keyhole.policy.reader import Setting

CoveredSuffix = Callable[[str], str | None]
"""The public suffix that `*.NAME` would cover, if any."""


@dataclass(frozen=True, slots=True)
class World:
    """What the pure floor is handed of the world: the catalogue, the suffix list, preset names."""

    catalogue: Catalogue
    covered_suffix: CoveredSuffix
    preset_names: tuple[str, ...]


@dataclass(slots=True)
class Builder:
    """Builds one policy and collects the faults and notes on the way."""

    document: Document
    project: dict[Path, Setting]
    user: dict[Path, Setting]
    world: World
    faults: list[Fault] = field(default_factory=list)
    notes: list[Fault] = field(default_factory=list)

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
                **{name: self._get("upstream", name) for name in field_names(Upstream)}
            ),
        )
        self._check_presets(policy.presets)
        self._check_suffixes()
        self._check_overlaps(policy)
        self._check_default_secrets(policy)
        self._note_unused(policy)
        return policy

    def _get(self, *path: str) -> Any:  # noqa: ANN401 - of the key's kind
        """The project's value, else the user's, else the default."""
        setting = self.project.get(path) or self.user.get(path)
        return setting.value if setting else BY_PATH[path].default

    def _all_of(self, table: str, made: type) -> dict[str, Any]:
        return {name: self._get(table, name) for name in field_names(made)}

    def _sandbox(self) -> Sandbox:
        sandbox = Sandbox(**self._all_of("sandbox", Sandbox))
        if sandbox.image and sandbox.runtime is Runtime.BWRAP:
            self._fault(
                ("sandbox", "image"), "an image is for docker or podman", 'runtime = "docker"'
            )
        if sandbox.volumes and sandbox.runtime is Runtime.BWRAP:
            self._fault(
                ("sandbox", "volumes"), "volumes are for docker or podman", 'runtime = "docker"'
            )
        return sandbox

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
            words = Words(
                name, frozenset(table), written, self.user.get((*prefix, "secret")), self._fault
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
        if one.git and two.git and set(one.patterns) == set(two.patterns):
            # Two accounts on one forge: the repository chooses.
            shared = one.git.repos & two.git.repos
            if not shared:
                return
            message = f"{min(shared)} is granted by services.{one.name} too"
            self._fault(("services", two.name, "repos"), message, "grant it once")
            return
        message = f"{clashes[0][1]} is a host of services.{one.name} too"
        self._fault(("services", two.name), message, "one host belongs to one service")

    def _check_default_secrets(self, policy: Policy) -> None:
        """I1: a cloned policy must not lead a secret that it does not even name elsewhere."""
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

    def _at(self, path: Path, message: str, hint: str | None) -> Fault:
        setting = self.project.get(path[:-1])
        last = path[-1] if path else None
        if setting and isinstance(last, int) and last < len(setting.indices):
            path = (*path[:-1], setting.indices[last])
        span = self.document.values.get(path) or self.document.keys.get(path)
        return self.document.fault(span, message, hint)
