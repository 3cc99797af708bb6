"""Files and variables by which unmodified clients work with credentials they never hold (I1).

Called when a run is prepared, after the mount plan. In: the policy, this session's certificates,
placeholders. Out: files and variables for the sandbox. No private key is
among its inputs and no secret is revealed here.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.setup.git_settings import ENVIRONMENT, OTHERS, SYSTEM
from keyhole.inject.agent_profile import SettingsFormat
from keyhole.inject.agent_settings import merge_settings, read_settings, write_settings
from keyhole.inject.canary import CANARY, NOISE, Canary
from keyhole.inject.kept_settings import keep_changes
from keyhole.inject.placeholder import TokenShape
from keyhole.inject.stub_files import StubFile, stub_files
from keyhole.policy.disclose import disclose
from keyhole.policy.schema import OnDecoy
from keyhole.sandbox.files.inside_path import resolve_inside
from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Entry,
    KeptTree,
    Mask,
    MountKind,
    SeedFile,
    TextFile,
    Tmpfs,
    Volume,
)
from keyhole.sandbox.files.paths import canonical
from keyhole.sandbox.files.trust_paths import TrustStorePaths, bundle_paths, truststore_paths

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.app.setup.git_settings import GitSettings
    from keyhole.policy.policy import Policy, Service

    LeftFiles = Callable[[str], bytes | None]
    """Reads a file below a kept home."""

CA = "/etc/keyhole/ca.pem"
"""This session's CA alone."""
BUNDLE = "/etc/keyhole/bundle.pem"
"""The same after the system's roots."""
POLICY = "/etc/keyhole/policy.json"
"""The sandbox's permissions, for agents."""

BUNDLE_VARIABLES = """
SSL_CERT_FILE REQUESTS_CA_BUNDLE CURL_CA_BUNDLE GIT_SSL_CAINFO PIP_CERT CARGO_HTTP_CAINFO
AWS_CA_BUNDLE CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE GRPC_DEFAULT_SSL_ROOTS_FILE_PATH
BUNDLE_SSL_CA_CERT npm_config_cafile CODEX_CA_CERTIFICATE NIX_SSL_CERT_FILE HTTPLIB2_CA_CERTS
""".split()
"""They replace a client's own roots, so they name the merged bundle. Not YARN_HTTPS_CA_FILE_PATH:
Yarn 2 and 3 stop at a YARN_ variable that they do not know, and each Yarn reads Node's."""

CA_VARIABLES = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
"""They add to a client's own roots. Not NODE_OPTIONS, with which older Nodes do not start, nor
JAVA_TOOL_OPTIONS, for which each JVM prints a line: a JVM's trust store is covered instead."""

UNSHAPED = TokenShape.parse("keyhole-{alnum:32}")
"""The placeholder in responses for a service whose tokens have no known shape."""

_PER_CHARACTER = 2
_PER_PART = 256
"""Random bytes that a placeholder takes: two for each character, and a token in JSON takes 134."""


class ClientSetup(Struct, frozen=True):
    """The files and variables for one session's sandbox."""

    entries: tuple[Entry, ...]
    """Mounted after those of the file plan."""
    environment: Mapping[str, str]
    """Variables; those that the policy sets win over these."""
    notices: tuple[str, ...]
    """Lines for the person, once."""


class SandboxCertificates(Struct, frozen=True):
    """Certificates for this session's sandbox: its CA alone, all roots, and all roots for JVMs."""

    ca_pem: bytes
    bundle_pem: bytes
    truststore: Callable[[], bytes]
    """Made only where a JVM is installed."""


def build_client_setup(
    policy: Policy,
    certificates: SandboxCertificates | None,
    shown: Sequence[Entry],
    home: Path,
    stand_ins: SessionPlaceholders,
    today: str,
    root: Path = Path("/"),
    git: GitSettings | None = None,
    stores: TrustStorePaths | None = None,
    own_files: Sequence[StubFile] = (),
    left: LeftFiles = lambda _: None,
) -> ClientSetup:
    """The client setup for a sandbox that sees the paths in `shown`; `today` as 2026-07-01.

    `certificates` is None if the gateway terminates no TLS: then there is no CA to trust.

    `root` has the system's trees; tests have their own. `git` has git's settings inside. `stores`
    are an image's; without them the system is this host's. `own_files` are an agent's settings for
    the home. `left` reads a file of a kept home as an earlier sandbox left it.
    """
    files = _Files(shown, canonical(str(home)), left)
    files.place(POLICY, disclose(policy))
    environment = dict(stand_ins.environment)
    if certificates is not None:
        files.place(CA, certificates.ca_pem.decode("ascii"))
        files.place(BUNDLE, certificates.bundle_pem.decode("utf-8"))
        files.cover_system(certificates, stores or files.of_this_host(root))
        environment |= dict.fromkeys(BUNDLE_VARIABLES, BUNDLE) | dict.fromkeys(CA_VARIABLES, CA)
    if git is not None:
        files.place_git(git)
        environment |= ENVIRONMENT
    stubs = {stub.path: stub for stub in stub_files(stand_ins.by_template, today)}
    for path, stub in stubs.items():
        files.place_stub(_with_settings(stub, [own for own in own_files if own.path == path]))
    for own in own_files:
        if own.path not in stubs:
            files.place_own(own)
    if stand_ins.canary is not None:
        files.place_own(stand_ins.canary.file())
    return ClientSetup(
        tuple(files.entries),
        MappingProxyType(environment),
        (*stand_ins.notices, *files.notices, *(git.notices if git else ())),
    )


def _with_settings(stub: StubFile, own: Sequence[StubFile]) -> StubFile:
    """A client's login file that also has settings: both in one, and the login's values win."""
    table = read_settings(stub.content, SettingsFormat.JSON)
    fixed = stub.fixed
    for each in own:
        table = merge_settings(read_settings(each.content, SettingsFormat.JSON), table)
        fixed = None if fixed is None else merge_settings(each.fixed or {}, fixed)
    if not own:
        return stub
    return StubFile(stub.path, write_settings(table, SettingsFormat.JSON), fixed=fixed)


def inspects_tls(policy: Policy) -> bool:
    """Whether the gateway terminates TLS for any host; otherwise clients get none of our
    certificates."""
    return any(p not in s.passthrough for s in policy.services for p in s.patterns)


class SessionPlaceholders:
    """The placeholders of a session, one for each service, under all the names that clients use.

    Made once for each session; `noise` returns so many random bytes. `given` are variables that
    the sandbox has already: a pod's environment is older than the policy that it is claimed under.
    """

    def __init__(
        self,
        policy: Policy,
        noise: Callable[[int], bytes],
        given: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._noise = noise
        self._given = given
        self.environment: dict[str, str] = {}
        self.by_service: dict[str, str] = {}
        self.by_template: dict[str, str] = {}
        self.by_variable: dict[str, Mapping[str, str]] = {}
        self.notices: list[str] = []
        self._owners: dict[str, Service] = {}
        self._shaped: dict[tuple[str, TokenShape], str] = {}
        for service in policy.services:
            if service.secret:
                self._add(service)
        self.canary: Canary | None = None
        if policy.limits.on_decoy is OnDecoy.FREEZE and not _uses_aws(policy):
            self.canary = Canary(noise(NOISE))

    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """All placeholders of each service, the usual one first; and the canary's values."""
        texts = {
            name: tuple(dict.fromkeys((usual, *self.by_variable[name].values())))
            for name, usual in self.by_service.items()
        }
        return texts | ({CANARY: self.canary.texts} if self.canary is not None else {})

    def _add(self, service: Service) -> None:
        own = dict(service.placeholders)
        shared = [name for name in service.env if name not in own]
        usual = self._value(shared, service.placeholder or UNSHAPED)
        found = {n: self._value([n], own[n]) if n in own else usual for n in service.env}
        found |= {name: self._given[name] for name in found if name in self._given}
        self.by_service[service.name] = usual
        self.by_variable[service.name] = MappingProxyType(found)
        if service.template:
            self.by_template.setdefault(service.template, usual)
        for name, value in found.items():
            owner = self._owners.setdefault(name, service)
            if owner is service:
                self.environment[name] = value
            elif self.environment[name] != value:
                self.notices.append(
                    f"{name} holds the placeholder of {owner.rule}; {service.rule} names it too, "
                    "in another shape. The host decides whose credential is written"
                )

    def _value(self, names: Sequence[str], shape: TokenShape) -> str:
        """The values of these variables: that of another service with the same shape, or a new one.

        A client that signs with it would otherwise be right for one of the services alone.
        """
        given = (self._given[name] for name in names if name in self._given)
        known = (self._shaped[name, shape] for name in names if (name, shape) in self._shaped)
        value = next(given, None) or next(known, None) or self._make(shape)
        self._shaped |= dict.fromkeys(((name, shape) for name in names), value)
        return value

    def _make(self, shape: TokenShape) -> str:
        needed = sum(_PER_CHARACTER * part.count + _PER_PART for part in shape.parts)
        return shape.placeholder(self._noise(needed))


def _uses_aws(policy: Policy) -> bool:
    """Whether a service has the sandbox use AWS's variables: its client must not find another key
    in the canary file."""
    return any(name.startswith("AWS_") for service in policy.services for name in service.env)


class _Files:
    """Entries to come after those of the plan."""

    def __init__(self, shown: Sequence[Entry], home: str, left: LeftFiles) -> None:
        self._shown = shown
        self._home = home
        self._left = left
        self.entries: list[Entry] = []
        self.notices: list[str] = []

    def place(self, path: str, content: str) -> None:
        self.entries.append(TextFile(path, content))

    def of_this_host(self, root: Path) -> TrustStorePaths:
        return TrustStorePaths(bundle_paths(self._shown, root), truststore_paths(self._shown, root))

    def cover_system(self, certificates: SandboxCertificates, stores: TrustStorePaths) -> None:
        """Cover the system's own bundles, so that clients that read no variable trust the same
        roots.

        When the host updates its roots, the cover is lost. It hides nothing, so the run goes on.
        """
        bundle = certificates.bundle_pem.decode("utf-8")
        self.entries += [TextFile(place, bundle, guards=False) for place in stores.bundles]
        content = certificates.truststore() if stores.truststores else b""
        self.entries += [BinaryFile(place, content) for place in stores.truststores]

    def place_git(self, git: GitSettings) -> None:
        """Cover the host's own configuration, which may name helpers and credentials (I1)."""
        for path in (SYSTEM, *OTHERS):
            place = resolve_inside(path, self._shown)
            if place and (place.is_file or (place.is_free and path == SYSTEM)):
                self.entries.append(TextFile(place.path, git.system, guards=place.is_file))
        self.entries += [TextFile(path, f.content, f.mode) for path, f in git.files.items()]

    def _is_own(self, entry: Entry | None) -> bool:
        """Whether the file there belongs to this sandbox alone."""
        is_volume = isinstance(entry, Volume) and not entry.shared
        return isinstance(entry, Tmpfs | KeptTree) or is_volume

    def _seed(self, path: str, file: StubFile, tree: Entry | None) -> None:
        kept = isinstance(tree, KeptTree)
        text = keep_changes(file, self._left(file.path)) if kept else file.content
        self.entries.append(SeedFile(path, text, file.mode))

    def place_own(self, file: StubFile) -> None:
        """A file of the sandbox's own. Where the policy shows the host's tree, that one counts."""
        path = f"{self._home}/{file.path}"
        place = resolve_inside(path, self._shown)
        if place and place.path == path and self._is_own(place.entry):
            self._seed(path, file, place.entry)

    def place_stub(self, stub: StubFile) -> None:
        path = f"{self._home}/{stub.path}"
        place = resolve_inside(path, self._shown)
        if place and place.path == path and self._is_own(place.entry):
            self._seed(path, stub, place.entry)
        elif place and place.entry == Mask(path, MountKind.FILE):
            # The host's own login, in a tree that the policy shows: the mask is there already.
            self.entries.append(TextFile(path, stub.content))
        else:
            self.notices.append(
                f"~/{stub.path} lies in a tree that the policy shows, so no placeholder is put "
                "there; its client may ask for a login"
            )
