"""The sandbox's kit: what unmodified clients need to work with credentials they never hold (I1).

Called by whoever prepares a run, once the file plan stands. In: the policy, this session's
certificates, what stands for secrets. Out: files and variables for the sandbox. No private key is
among its inputs and no secret is revealed here.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from keyhole.app.gitsettings import ENVIRONMENT, OTHERS, SYSTEM
from keyhole.inject.placeholder import Shape
from keyhole.inject.stubs import Stub, stub_files
from keyhole.model.value import dataclass
from keyhole.policy.disclose import disclose
from keyhole.sandbox.files.authorities import bundle_places, truststore_places
from keyhole.sandbox.files.fileplan import Blob, Entry, Kind, Mask, Seed, Text, Tmpfs, Volume
from keyhole.sandbox.files.paths import canonical
from keyhole.sandbox.files.sight import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from keyhole.app.gitsettings import GitSettings
    from keyhole.policy.policy import Policy, Service

CA = "/etc/keyhole/ca.pem"
"""This session's CA alone."""
BUNDLE = "/etc/keyhole/bundle.pem"
"""The same after the system's roots."""
POLICY = "/etc/keyhole/policy.json"
"""What this sandbox may do."""

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

UNSHAPED = Shape.parse("keyhole-{alnum:32}")
"""For a service that says no shape: what its secret is replaced by in answers."""

_PER_CHARACTER = 2
_PER_PART = 256
"""Random bytes that a placeholder takes: two for each character, and a token in JSON takes 134."""


@dataclass(frozen=True, slots=True)
class Kit:
    """What is placed in one session's sandbox."""

    entries: tuple[Entry, ...]
    """To be mounted after the file plan's."""
    environment: Mapping[str, str]
    """What the policy sets itself wins over these."""
    notices: tuple[str, ...]
    """Lines for the person, once."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where an image's programs look for authorities, as mount points."""

    bundles: tuple[str, ...]
    truststores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Whom this session's sandbox trusts: its CA alone, all together, and the latter for JVMs."""

    ca_pem: bytes
    bundle_pem: bytes
    truststore: Callable[[], bytes]
    """Made only where a JVM is installed."""


def build(
    policy: Policy,
    certificates: Certificates | None,
    shown: Sequence[Entry],
    home: Path,
    stand_ins: StandIns,
    today: str,
    root: Path = Path("/"),
    git: GitSettings | None = None,
    stores: Stores | None = None,
) -> Kit:
    """The kit for a sandbox that sees what is `shown`; `today` as 2026-07-01.

    `certificates` is None where no host's TLS ends at the gateway: then there is no CA to trust.

    `root` is where the system's trees are; tests have their own. `git` is what git is told inside.
    `stores` are an image's; without them the system is this host's.
    """
    files = _Files(shown, canonical(str(home)))
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
    for stub in stub_files(stand_ins.by_template, today):
        files.place_stub(stub)
    return Kit(
        tuple(files.entries),
        MappingProxyType(environment),
        (*stand_ins.notices, *files.notices),
    )


def inspects(policy: Policy) -> bool:
    """Whether any host's TLS ends at the gateway; else clients meet no certificate of ours."""
    return any(p not in s.passthrough for s in policy.services for p in s.patterns)


class StandIns:
    """Placeholders, one for each service, by all the names under which they are asked for.

    Made once for each session; `noise` gives so many random bytes.
    """

    def __init__(self, policy: Policy, noise: Callable[[int], bytes]) -> None:
        self._noise = noise
        self.environment: dict[str, str] = {}
        self.by_service: dict[str, str] = {}
        self.by_template: dict[str, str] = {}
        self.by_variable: dict[str, Mapping[str, str]] = {}
        self.notices: list[str] = []
        self._owners: dict[str, Service] = {}
        self._shaped: dict[tuple[str, Shape], str] = {}
        for service in policy.services:
            if service.secret:
                self._add(service)

    def texts(self) -> Mapping[str, tuple[str, ...]]:
        """All placeholders of each service, the usual one first."""
        return {
            name: tuple(dict.fromkeys((usual, *self.by_variable[name].values())))
            for name, usual in self.by_service.items()
        }

    def _add(self, service: Service) -> None:
        own = dict(service.placeholders)
        shared = [name for name in service.env if name not in own]
        usual = self._value(shared, service.placeholder or UNSHAPED)
        found = {n: self._value([n], own[n]) if n in own else usual for n in service.env}
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

    def _value(self, names: Sequence[str], shape: Shape) -> str:
        """What these variables hold: what another service of that shape gave one of them, or new.

        A client that signs with it would otherwise be right for one of the services alone.
        """
        known = (self._shaped[name, shape] for name in names if (name, shape) in self._shaped)
        value = next(known, None) or self._make(shape)
        self._shaped |= dict.fromkeys(((name, shape) for name in names), value)
        return value

    def _make(self, shape: Shape) -> str:
        needed = sum(_PER_CHARACTER * part.count + _PER_PART for part in shape.parts)
        return shape.placeholder(self._noise(needed))


class _Files:
    """Entries to come after those of the plan."""

    def __init__(self, shown: Sequence[Entry], home: str) -> None:
        self._shown = shown
        self._home = home
        self.entries: list[Entry] = []
        self.notices: list[str] = []

    def place(self, path: str, content: str) -> None:
        self.entries.append(Text(path, content))

    def of_this_host(self, root: Path) -> Stores:
        return Stores(bundle_places(self._shown, root), truststore_places(self._shown, root))

    def cover_system(self, certificates: Certificates, stores: Stores) -> None:
        """Over the system's own, so that clients which read no variable trust the same.

        An update of the host's roots takes such a cover away, which hides nothing: no reason to
        end the run.
        """
        bundle = certificates.bundle_pem.decode("utf-8")
        self.entries += [Text(place, bundle, guards=False) for place in stores.bundles]
        content = certificates.truststore() if stores.truststores else b""
        self.entries += [Blob(place, content) for place in stores.truststores]

    def place_git(self, git: GitSettings) -> None:
        """The host's own configuration may name helpers and credentials: it stays covered (I1)."""
        for path in (SYSTEM, *OTHERS):
            place = place_of(path, self._shown)
            if place and (place.is_file or (place.is_free and path == SYSTEM)):
                self.entries.append(Text(place.path, git.system, guards=place.is_file))
        self.entries += [Text(path, f.content, f.mode) for path, f in git.files.items()]

    def _is_own(self, entry: Entry | None) -> bool:
        """Whether what lies there is this sandbox's alone."""
        return isinstance(entry, Tmpfs) or (isinstance(entry, Volume) and not entry.shared)

    def place_stub(self, stub: Stub) -> None:
        path = f"{self._home}/{stub.path}"
        place = place_of(path, self._shown)
        if place and place.path == path and self._is_own(place.entry):
            self.entries.append(Seed(path, stub.content))
        elif place and place.entry == Mask(path, Kind.FILE):
            # The host's own login, in a tree that the policy shows: the mask is there already.
            self.entries.append(Text(path, stub.content))
        else:
            self.notices.append(
                f"~/{stub.path} lies in a tree that the policy shows, so no placeholder is put "
                "there; its client may ask for a login"
            )
