"""A policy as values, fully resolved. Made by `build.py` alone.

The zero value of every field denies: no hosts, no rules, no repositories, no branches (I3).
"""

from __future__ import annotations

import enum
import shlex

from msgspec import Struct, field

from keyhole.inject.injection import Injection
from keyhole.inject.model_api import UNMETERED, JudgedPaths
from keyhole.inject.operations import OperationTable
from keyhole.inject.placeholder import TokenShape
from keyhole.inject.prices import PriceList
from keyhole.inject.slots import Slot
from keyhole.inject.token_usage import UsageFormat
from keyhole.model.commit_identity import CommitIdentity
from keyhole.model.glob import Glob
from keyhole.model.host import HostPattern
from keyhole.model.repository import Forge, Repository
from keyhole.model.rule import AccessRule
from keyhole.model.secret import Secret, SecretRef
from keyhole.policy.budget import Budget, ServiceLimits
from keyhole.policy.inbound import InboundRule
from keyhole.policy.kinds import HostPort, SocketAddress
from keyhole.policy.mcp_grant import McpGrant
from keyhole.policy.ports import PublishedPort
from keyhole.policy.schema import (
    ApiAccess,
    AskKind,
    CacheName,
    ChangesMode,
    HomeMode,
    HttpVersion,
    OnDecoy,
    RuntimeName,
)
from keyhole.policy.service_login import ServiceLogin

OF_PRESETS = "preset."
"""The beginning of the name of a service that a preset made; no service of the file has a dot."""


class Tier(enum.IntEnum):
    """The rank of a rule: of several that match, the lowest tier decides."""

    DENY = 0
    OPENING = 1
    """An allow of the policy that names a guarded endpoint and so opens it."""
    GUARD = 2
    """A deny of the catalogue: endpoints that mint, list or move credentials."""
    ALLOW = 3


class RankedRule(Struct, frozen=True):
    """An access rule, its id, and its rank."""

    rule: AccessRule
    tier: Tier
    id: str
    folds: bool = False
    """Whether its path is matched without regard to case."""
    level: ApiAccess = ApiAccess.OFF
    """The `api` level of a forge that added it; OFF: no level did."""


class ServiceHost(Struct, frozen=True):
    """Some hosts of a service, and their rules."""

    patterns: tuple[HostPattern, ...]
    rules: tuple[RankedRule, ...] = ()
    inject: tuple[Injection, ...] = ()
    strip: tuple[Slot, ...] = ()
    keep: tuple[Slot, ...] = ()
    merge: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[int, str], ...] = ()
    """Lines of the secret that are names, and the text that clients see instead."""
    git: bool = False
    git_inject: tuple[Injection, ...] = ()
    """How the secret is written into git's own requests, which need another form."""
    encoded_slash: bool = False
    ranges: bool = False
    """Whether parts of responses may be requested, although a secret that is cut in two is not
    found."""
    credential: Secret | None = None
    """A preset's credential, which was found in the host's own settings."""
    usage: tuple[UsageFormat, ...] = ()
    """How its responses report their tokens."""
    returned: tuple[Slot, ...] = ()
    """Fields of its responses that reach the sandbox although they look like a session or a digest;
    so do cookies in `keep`."""
    bodies: tuple[AccessRule, ...] = ()
    """Requests that have a body although HTTP defines none for their method."""
    judged: tuple[JudgedPaths, ...] = ()
    """Requests whose bodies are judged; where there are some, other bodies are closed."""
    operations: tuple[OperationTable, ...] = ()
    """How operations are told apart that have the same method and path."""
    catalogued: bool = False
    """Whether the catalogue knows these hosts; otherwise they are the user's own servers."""


class GitGrant(Struct, frozen=True):
    """The repositories that git may use, and the permitted changes."""

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
    api: ApiAccess = ApiAccess.OFF


class Service(Struct, frozen=True):
    """A service: its hosts, its secret by reference, its git grant if it is a forge."""

    name: str
    title: str
    hosts: tuple[ServiceHost, ...]
    template: str | None = None
    secret: SecretRef | None = None
    env: tuple[str, ...] = ()
    placeholder: TokenShape | None = None
    placeholders: tuple[tuple[str, TokenShape], ...] = ()
    """Placeholder shapes of variables in `env` that hold a part with its own shape."""
    passthrough: tuple[HostPattern, ...] = ()
    returned: tuple[Slot, ...] = ()
    """Response fields (sessions, digests) that the policy itself lets through to the sandbox."""
    git: GitGrant | None = None
    mcp: McpGrant | None = None
    """For a server of MCP: what it grants."""
    sources: tuple[str, ...] = ()
    """For a preset: the files of this host from which its settings were read."""
    unsafe_keep: tuple[Slot, ...] = ()
    """Headers of the client that the policy, not the catalogue, passes on."""
    chose_hosts: bool = False
    """Whether the policy, not the catalogue, decides where the secret goes or how it is written."""
    limits: ServiceLimits | None = None
    """Limits of its own; None: only the session's."""
    secret_life: float | None = None
    """Seconds that the output of an `exec:` source is used; None: as it declares, or for ever."""
    http: HttpVersion | None = None
    """The one version of HTTP that its clients may speak; None: either."""
    features: tuple[str, ...] = ()
    """What its provider may do by itself when a body asks for it."""
    models: tuple[str, ...] = ()
    """Patterns of the models that may be used; empty: any."""
    max_tokens: int | None = None
    """The longest answer that a request may ask for; None: any."""
    operations: tuple[str, ...] = ()
    """Operations that are open: names, patterns of names, and words of marks."""
    prices: PriceList = PriceList()
    """What its models cost: the policy's own prices, and the catalogue's."""
    login: ServiceLogin = field(default_factory=ServiceLogin)
    """How `keyhole login` logs in to it."""

    @property
    def patterns(self) -> tuple[HostPattern, ...]:
        """All host patterns of the service."""
        return tuple(p for host in self.hosts for p in host.patterns)

    @property
    def credential_hosts(self) -> tuple[str, ...]:
        """The patterns of the hosts that get its secret."""
        written = (host for host in self.hosts if host.inject or host.git_inject)
        return tuple(str(p) for host in written for p in host.patterns)

    @property
    def known_features(self) -> tuple[str, ...]:
        """What its provider could do by itself, as far as the catalogue knows."""
        apis = (judged.api for host in self.hosts for judged in host.judged)
        return tuple(sorted({word for api in apis if api is not None for word in api.features}))

    @property
    def closed_features(self) -> tuple[str, ...]:
        """Those of them that the policy leaves closed."""
        budget = self.limits.budget if self.limits else Budget()
        opened = self.features if budget.counts_tokens else (*self.features, UNMETERED)
        return tuple(word for word in self.known_features if word not in opened)

    @property
    def known_operations(self) -> tuple[str, ...]:
        """Words of the operations that the catalogue closes."""
        tables = (table for host in self.hosts for table in host.operations)
        return tuple(sorted({word for table in tables for word in table.words}))

    @property
    def closed_operations(self) -> tuple[str, ...]:
        """Those of them that the policy leaves closed."""
        return tuple(word for word in self.known_operations if word not in self.operations)

    @property
    def has_operations(self) -> bool:
        """Whether operations are told apart that have the same method and path."""
        return any(host.operations for host in self.hosts)

    @property
    def names_operations(self) -> bool:
        """Whether its requests name their operation, which the policy must grant."""
        return any(table.named for host in self.hosts for table in host.operations)

    @property
    def rule(self) -> str:
        """The rule's id of the service as a whole."""
        return f"services.{self.name}"


class Sandbox(Struct, frozen=True):
    """How the sandbox is made."""

    runtime: RuntimeName
    writable: tuple[str, ...]
    readable: tuple[str, ...]
    unsafe_paths: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    pass_env: tuple[str, ...]
    git_hooks: bool
    image: str | None
    git_user: CommitIdentity | None = None
    volumes: tuple[tuple[str, str], ...] = ()
    """Mount points inside, and the names of the volumes there."""
    sign: str | None = None
    """The public key file whose key signs commits, as `~/…` or an absolute path; or `gpg:` and the
    id of a key; None: none."""
    home: HomeMode | None = None
    """None: kept for agents that are run by name, else fresh."""
    caches: tuple[CacheName, ...] | None = None
    """None: those of the presets."""
    changes: ChangesMode = ChangesMode.DIRECT
    publish: tuple[PublishedPort, ...] = ()
    """Ports inside that this host's browser can open."""
    host_ports: tuple[int, ...] = ()
    """Ports of the host's loopback that the sandbox can use."""
    inbound: tuple[InboundRule, ...] = ()
    """Peers that may connect to a pod."""

    @property
    def uses_ports(self) -> bool:
        """Whether ports of the sandbox and of the host are joined."""
        return bool(self.publish or self.host_ports)


class Limits(Struct, frozen=True):
    """Limits on what a sandbox can use; sizes in bytes, durations in seconds (I9)."""

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
    home: int = 16 << 30
    """Bytes of the kept home and caches together."""
    on_decoy: OnDecoy = OnDecoy.NOTE
    """The reaction to a placeholder at a host that is not its own."""


class Upstream(Struct, frozen=True):
    """How the gateway reaches origins."""

    ca_file: str | None = None
    proxy: str | None = None
    private: tuple[HostPattern, ...] = ()
    connect: tuple[tuple[HostPort, SocketAddress], ...] = ()


class Approvals(Struct, frozen=True):
    """What a person is asked about while it waits, and how long it waits."""

    ask: tuple[AskKind, ...] | None = None
    """None: hosts and requests while a person watches, or if there is a command to answer."""
    wait: float = 120.0
    most_pending: int = 32
    command: str | None = None
    """A command of the host, which is given each question."""

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command."""
        return tuple(shlex.split(self.command or ""))


class Policy(Struct, frozen=True):
    """The content of one policy file, with the user's defaults under it."""

    sandbox: Sandbox
    limits: Limits
    allow: tuple[HostPattern, ...] = ()
    presets: tuple[str, ...] = ()
    services: tuple[Service, ...] = ()
    upstream: Upstream = field(default_factory=Upstream)
    learning: bool = False
    """Whether hosts that no rule names are open; never by the file, see `learning_mode.py`."""
    approvals: Approvals = field(default_factory=Approvals)
