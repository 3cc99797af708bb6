"""A policy as values: what a sandbox may do, fully resolved. Made by `build.py` alone.

Every field's zero denies: no hosts, no rules, no repositories, no branches (I3).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, field
from keyhole.policy.schema import Api, Runtime

if TYPE_CHECKING:
    from keyhole.inject.injection import Injection
    from keyhole.inject.placeholder import Shape
    from keyhole.inject.slots import Slot
    from keyhole.inject.usage import Usage
    from keyhole.model.glob import Glob
    from keyhole.model.host import HostPattern
    from keyhole.model.person import Person
    from keyhole.model.repository import Forge, Repository
    from keyhole.model.rule import AccessRule
    from keyhole.model.secret import Secret, SecretRef
    from keyhole.policy.budget import ServiceLimits
    from keyhole.policy.kinds import Endpoint, SocketAddress


class Tier(enum.IntEnum):
    """Which rule speaks when several match: the lowest."""

    DENY = 0
    OPENING = 1
    """An allow of the policy that names a guarded endpoint and so opens it."""
    GUARD = 2
    """A deny of the catalogue: endpoints that mint, list or move credentials."""
    ALLOW = 3


@dataclass(frozen=True, slots=True)
class RankedRule:
    """An access rule, its id, and how strongly it speaks."""

    rule: AccessRule
    tier: Tier
    id: str
    folds: bool = False
    """Whether its path is matched without regard to case."""
    level: Api = Api.OFF
    """The `api` level of a forge that brought it; OFF: it is there by itself."""


@dataclass(frozen=True, slots=True)
class ServiceHost:
    """Some hosts of a service, with what holds there."""

    patterns: tuple[HostPattern, ...]
    rules: tuple[RankedRule, ...] = ()
    inject: tuple[Injection, ...] = ()
    strip: tuple[Slot, ...] = ()
    keep: tuple[Slot, ...] = ()
    merge: tuple[tuple[str, str], ...] = ()
    git: bool = False
    git_inject: tuple[Injection, ...] = ()
    """How the secret is written into requests of git's own, which want it in their own way."""
    encoded_slash: bool = False
    ranges: bool = False
    """Whether pieces of answers may be asked for although a secret in two pieces is not seen."""
    credential: Secret | None = None
    """Of a preset: found in the host's own settings rather than named by a reference."""
    usage: tuple[Usage, ...] = ()
    """How its answers say how many tokens they took."""
    returned: tuple[Slot, ...] = ()
    """Fields of its answers that reach the sandbox although they look like a session or a digest;
    cookies in `keep` do so as well."""
    bodies: tuple[AccessRule, ...] = ()
    """Which requests have a body although HTTP defines none for their method."""
    catalogued: bool = False
    """Whether the catalogue knows these hosts; else they are servers of the user's own."""


@dataclass(frozen=True, slots=True)
class GitGrant:
    """What git may do with which repositories."""

    forge: Forge
    user: str
    repos: frozenset[Repository] = frozenset()
    push: tuple[Glob, ...] = ()
    tags: tuple[Glob, ...] = ()
    protect: tuple[Glob, ...] | None = None
    """None: the remote's default branch, unless `push` names it exactly."""
    deny_paths: tuple[Glob, ...] = ()
    push_options: frozenset[str] = frozenset()
    create: bool = False
    force: bool = False
    delete: bool = False
    api: Api = Api.OFF


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its hosts, its secret by reference, its git grant if it is a forge."""

    name: str
    title: str
    hosts: tuple[ServiceHost, ...]
    template: str | None = None
    secret: SecretRef | None = None
    env: tuple[str, ...] = ()
    placeholder: Shape | None = None
    placeholders: tuple[tuple[str, Shape], ...] = ()
    """Of variables in `env` whose part of the credential has a shape of its own."""
    passthrough: tuple[HostPattern, ...] = ()
    returned: tuple[Slot, ...] = ()
    """What the policy itself says reaches the sandbox of sessions and digests in answers."""
    git: GitGrant | None = None
    sources: tuple[str, ...] = ()
    """Of a preset: where its settings were read on this host."""
    unsafe_keep: tuple[Slot, ...] = ()
    """Headers of the client that the policy, not the catalogue, lets go on."""
    chose_hosts: bool = False
    """Whether the policy, not the catalogue, says where the secret goes or how it is written."""
    limits: ServiceLimits | None = None
    """Bounds of its own; None: the session's alone."""
    secret_life: float | None = None
    """Seconds that what an `exec:` source printed is used; None: it says so, or for ever."""

    @property
    def patterns(self) -> tuple[HostPattern, ...]:
        """All host patterns of the service."""
        return tuple(p for host in self.hosts for p in host.patterns)

    @property
    def rule(self) -> str:
        """The id under which the service as a whole speaks."""
        return f"services.{self.name}"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How the sandbox is made."""

    runtime: Runtime
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    unsafe_paths: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    pass_env: tuple[str, ...]
    git_hooks: bool
    image: str | None
    git_user: Person | None = None
    volumes: tuple[tuple[str, str], ...] = ()
    """Places inside, and the names of what is kept there."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a sandbox can use up; sizes in bytes, durations in seconds (I9)."""

    requests_per_second: int
    concurrent_requests: int
    connections: int
    connections_per_second: int
    dns_per_second: int
    upload: int
    download: int
    body: int
    body_time: float
    memory: int
    processes: int
    ttl: float
    idle: float
    audit_per_second: int
    cpus: float | None = None
    """Processors' worth of time; None: not bounded."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """How the gateway reaches origins."""

    ca_file: str | None = None
    proxy: str | None = None
    private: tuple[HostPattern, ...] = ()
    connect: tuple[tuple[Endpoint, SocketAddress], ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that one policy file, with the user's defaults under it, says."""

    sandbox: Sandbox
    limits: Limits
    allow: tuple[HostPattern, ...] = ()
    presets: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    upstream: Upstream = field(default_factory=Upstream)
