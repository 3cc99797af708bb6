"""Every key of a policy file, once: its type, default and meaning.

The reader, the JSON Schema, docs/policy.md and `keyhole check --show` are all made from this table,
so that none can tell a different story (I10).
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any

from keyhole.inject.placeholder import Shape
from keyhole.inject.slots import GLOBAL_SLOTS, Place, Slot, parse_returned
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.person import Person
from keyhole.model.ref import parse_ref_glob
from keyhole.model.repository import Forge
from keyhole.model.rule import PATTERN, AccessRule
from keyhole.model.secret import SecretRef
from keyhole.model.value import dataclass
from keyhole.policy import kinds

if TYPE_CHECKING:
    from keyhole.policy.kinds import Kind

SERVICE = "*"
"""Stands in a key's path for the name of a service."""


class Runtime(enum.StrEnum):
    """What runs the sandbox."""

    BWRAP = "bwrap"
    DOCKER = "docker"
    PODMAN = "podman"


class Api(enum.StrEnum):
    """How much of a forge's REST interface is open."""

    OFF = "off"
    READ = "read"
    PULL_REQUESTS = "pull-requests"


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `shown` is its default as a person reads it; `default` as the code does."""

    path: tuple[str, ...]
    kind: Kind
    shown: str
    meaning: str
    default: Any = None
    user: bool = False
    """Whether the user's own config.toml may set it too."""

    @property
    def dotted(self) -> str:
        """The path as the reference writes it."""
        return ".".join("N" if part == SERVICE else part for part in self.path)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def read_service_name(value: str) -> str:
    """A service's name, as in `[services.github]`."""
    if not _NAME.fullmatch(value):
        raise Unparsable("a service's name has letters, digits, '_' and '-', 64 at most")
    return value


def _plain_host(value: str) -> HostPattern:
    pattern = HostPattern.parse(value)
    if ":" in value:
        raise Unparsable("a port has no meaning here", pattern.name)
    return pattern


def _proxy(value: str) -> str:
    found = re.fullmatch(r"http://([^/@]+)/?", value)
    if "@" in value:
        raise Unparsable("a proxy's credential does not stand in the policy")
    if not found:
        raise Unparsable("a proxy is written as 'http://host:port', and spoken to in plain HTTP")
    HostPattern.parse(found[1])
    return value.rstrip("/")


def _file_glob(value: str) -> tuple[str, ...]:
    segments = tuple(value.removeprefix("/").split("/"))
    if any(s in {"", ".", ".."} for s in segments) or "\\" in value:
        raise Unparsable("a path in the repository has no empty, '.' or '..' segment")
    if any("**" in s and s != "**" for s in segments):
        raise Unparsable("'**' stands alone between slashes")
    return segments


def _push_option(value: str) -> str:
    # A pkt-line holds one option; a line break in it would be the server's to interpret.
    if not re.fullmatch(r"[\x20-\x7e]{1,1000}", value):
        raise Unparsable("a push option is one line of printable ASCII")
    return value


def _kept(value: str) -> Slot:
    slot = Slot.parse(value)
    if slot.place is not Place.HEADER or slot.name.endswith("*"):
        raise Unparsable("one header is kept by its whole name", "header:x-user-id")
    if any(known.covers(slot.place, slot.name) for known in GLOBAL_SLOTS):
        raise Unparsable("the client's own credential never travels")
    return slot


_PATTERNS = kinds.list_of("host patterns", HostPattern.parse)
_NAMES_ONLY = kinds.list_of("host patterns", _plain_host)
_RULES = kinds.list_of(
    '`"METHOD[,METHOD] /path/**"`, `"GET+body /path"`, `"WEBSOCKET /path"`',
    AccessRule.parse,
    PATTERN,
)
_BRANCHES = kinds.list_of("branch globs", parse_ref_glob)
_TAGS = kinds.list_of("tag globs", parse_ref_glob)
_REPOS = kinds.list_of("names", lambda value: value)
_PRESETS = kinds.list_of("names", lambda value: value)
_PUSH_OPTIONS = kinds.list_of("texts", _push_option)
_FILES = kinds.list_of("path globs", _file_glob)
_SLOTS = kinds.list_of('`"header:NAME"`, `"query:NAME"`, `"cookie:NAME"`', Slot.parse)
_RETURNED = kinds.list_of('`"cookie:NAME"`, `"header:NAME"`', parse_returned)
_KEPT = kinds.list_of('`"header:NAME"`', _kept)
_SECRET = kinds.text(
    "reference", SecretRef.parse, "^(store|keyring|file|exec|unsafe-env|login):.+$"
)
_SHAPE = kinds.text("shape", Shape.parse)
_CATALOGUE_NAME = kinds.text("catalogue name", read_service_name)

DEFAULT_DENY_PATHS = (
    # Workflows of forges, and the actions that they use; `uses: ./` runs the root's.
    ".github/workflows/**",
    ".github/actions/**",
    "action.yml",
    "action.yaml",
    ".gitea/workflows/**",
    ".gitea/actions/**",
    ".forgejo/workflows/**",
    ".forgejo/actions/**",
    ".gitlab-ci.yml",
    ".gitlab/ci/**",
    "bitbucket-pipelines.yml",
    ".builds/**",
    ".build.yml",
    ".onedev-buildspec.yml",
    # CI services.
    ".circleci/**",
    ".buildkite/**",
    "buildkite/pipeline.*",
    "buildkite.yml",
    "buildkite.yaml",
    "buildkite.json",
    ".woodpecker/**",
    ".woodpecker.yml",
    ".woodpecker.yaml",
    ".drone.yml",
    ".vela.yml",
    ".vela.yaml",
    ".travis.yml",
    ".cirrus.yml",
    ".cirrus.yaml",
    ".cirrus.star",
    ".semaphore/**",
    ".teamcity/**",
    "appveyor.yml",
    ".appveyor.yml",
    ".tekton/**",
    ".harness/**",
    ".taskcluster.yml",
    ".prow/**",
    ".prow.yaml",
    ".packit.yaml",
    ".packit.yml",
    ".copr/**",
    ".zuul.d/**",
    "zuul.d/**",
    ".zuul.yaml",
    "zuul.yaml",
    "screwdriver.yaml",
    "codeship-services.yml",
    "codeship-steps.yml",
    "bitrise.yml",
    "codemagic.yaml",
    "ci_scripts/**",
    "cloudbuild.yaml",
    "cloudbuild.yml",
    "cloudbuild.json",
    "buildspec.yml",
    "buildspec.yaml",
    ".azure-pipelines/**",
    "azure-pipelines.yml",
    "azure-pipelines.yaml",
    "Jenkinsfile",
    # What builds a preview of each branch, with the variables of the project.
    "vercel.json",
    "vercel.ts",
    "now.json",
    "netlify.toml",
    "wrangler.toml",
    "wrangler.json",
    "wrangler.jsonc",
    "amplify.yml",
    "amplify.yaml",
    "render.yaml",
    "railway.toml",
    "railway.json",
    "heroku.yml",
    "apprunner.yaml",
    ".platform/**",
    ".platform.app.yaml",
    ".upsun/**",
    ".readthedocs.yaml",
    ".readthedocs.yml",
    "readthedocs.yaml",
    "readthedocs.yml",
    # What builds a workplace ahead, with the secrets of the person or the organisation.
    ".devcontainer/**",
    ".devcontainer.json",
    ".gitpod.yml",
    ".gitpod/**",
    ".ona/**",
    ".codesandbox/**",
)
"""What a service runs or obeys on a push to any branch, before a person merges it, with secrets or
rights that the sandbox lacks. Not what is read from the default branch alone, which is protected
(`.github/dependabot.yml`, `CODEOWNERS`, `renovate.json`), nor the sources that a build runs."""


def _key(
    path: str,
    kind: Kind,
    shown: str,
    meaning: str,
    default: Any = None,  # noqa: ANN401 - of the key's kind
    *,
    user: bool = False,
) -> Key:
    return Key(tuple(path.split(".")), kind, shown, meaning, default, user)


def _limit(name: str, kind: Kind, shown: str, meaning: str) -> Key:
    value: Any = int(shown) if kind is kinds.COUNT else kind.read(shown)
    return Key(("limits", name), kind, shown, meaning, value, user=True)


KEYS = (
    _key("version", kinds.VERSION, "required", "of the policy's language"),
    _key("sandbox.runtime", kinds.choice(Runtime), "bwrap",
         "what runs the sandbox: bubblewrap, or a container of an engine",
         default=Runtime.BWRAP),
    _key("sandbox.writable", kinds.PATHS, '`["."]`',
         "on top of an empty home and read-only system trees; relative to the policy file",
         default=(".",)),
    _key("sandbox.readable", kinds.PATHS, "`[]`", "the same, read-only", default=()),
    _key("sandbox.unsafe_paths", kinds.PATHS, "`[]`",
         "binds or files that the dangerous-path rules would refuse or mask", default=()),
    _key("sandbox.env", kinds.ENV, "`{}`", "variables set inside, beyond TERM, LANG and the like",
         default=()),
    _key("sandbox.pass_env", kinds.VARIABLES, "`[]`", "variables passed in from outside",
         default=()),
    _key("sandbox.git_hooks", kinds.BOOL, "false", "run repository hooks inside",
         default=False),
    _key("sandbox.git_user", kinds.text('`"Name <mail>"`', Person.parse), "the host's",
         "who commits inside; else `user.name` and `user.email` of your own git settings"),
    _key("sandbox.image", kinds.TEXT, "–", "the image, for docker and podman"),
    _key("sandbox.volumes", kinds.VOLUMES, "`{}`",
         "directories that the engine keeps under a name and that outlive a sandbox, "
         "for docker and podman", default=()),
    _key("egress.allow", _PATTERNS, "`[]`",
         "hosts that are tunnelled, never decrypted: `name[:port]`, port 443 unless given; "
         "an overlap with a service's host is an error", default=()),
    _key("egress.presets", _PRESETS, "`[]`",
         "package indexes and download hosts, read at run time from the host's own "
         "package-manager settings; inspected, and for reading alone", default=()),
    _key("services.*.use", _CATALOGUE_NAME, "N",
         "the catalogue entry that gives hosts, header, paths and placeholder"),
    _key("services.*.hosts", _PATTERNS, "catalogue's",
         "required for a service of your own"),
    _key("services.*.secret", _SECRET, "none",
         "`store:`, `keyring:`, `file:`, `exec:`, `login:` or `unsafe-env:`; absent: inspected "
         "without a credential", user=True),
    _key("services.*.secret_life", kinds.DURATION, "–",
         "how long what an `exec:` command printed is used before it is run again, where it does "
         "not say so itself; absent: as long as the session lives"),
    _key("services.*.inject", kinds.INJECT, "catalogue's", "how the secret is written"),
    _key("services.*.allow", _RULES, "catalogue's",
         "requests that are let through, on the hosts that get the credential; required for a "
         "service of your own that is not a git service; `*` is any method, GET covers HEAD, and "
         "neither covers a WebSocket or a body where HTTP defines none"),
    _key("services.*.deny", _RULES, "`[]`",
         "wins over `allow`; added to the catalogue's guarded endpoints, which an `allow` rule "
         "opens only by naming them", default=()),
    _key("services.*.strip", _SLOTS, "catalogue's",
         "further places that are emptied of the client's own credentials"),
    _key("services.*.unsafe_keep", _KEPT, "`[]`",
         "headers of the client that go on although their names say that they carry a credential "
         "or claim who asks", default=()),
    _key("services.*.env", kinds.VARIABLES, "catalogue's",
         "variables that are set to the placeholder inside"),
    _key("services.*.placeholder", _SHAPE, "catalogue's",
         "the shape of the placeholder, as in `ghp_{alnum:36}`"),
    _key("services.*.encoded_slash", kinds.BOOL, "catalogue's, else false",
         "accept `%2F` in paths; such a path is judged in both readings and both must be allowed"),
    _key("services.*.unsafe_passthrough", _PATTERNS, "`[]`",
         "hosts of the service that are tunnelled, for clients that pin; no credential",
         default=()),
    _key("services.*.unsafe_return", _RETURNED, "`[]`",
         "cookies and header fields of answers that reach the sandbox although they hand out a "
         "session or tell a digest; a cookie named here is also sent back", default=()),
    _key("services.*.forge", kinds.choice(Forge), "catalogue's", "makes it a git service"),
    _key("services.*.repos", _REPOS, "`[]`", "repositories; nothing else exists",
         default=()),
    _key("services.*.push", _BRANCHES, "`[]`",
         "branches that may be pushed; empty: read-only; `*` one segment, `**` any", default=()),
    _key("services.*.create", kinds.BOOL, "true", "new branches, within `push`", default=True),
    _key("services.*.force", kinds.BOOL, "false", "rewriting, within `push`", default=False),
    _key("services.*.delete", kinds.BOOL, "false", "deletion, within `push`", default=False),
    _key("services.*.tags", _TAGS, "`[]`", "tags that may be created, never moved", default=()),
    _key("services.*.protect", _BRANCHES,
         "the remote's default branch, unless `push` names it exactly", "wins over `push`"),
    _key("services.*.deny_paths", _FILES,
         "what services run on a push (`.github/workflows/**`, `action.yml`, `netlify.toml`, …)",
         "a push that adds or changes one is refused",
         default=tuple(_file_glob(p) for p in DEFAULT_DENY_PATHS)),
    _key("services.*.push_options", _PUSH_OPTIONS, "`[]`",
         "options that a push may carry (`git push -o`), as exact texts", default=()),
    _key("services.*.api", kinds.choice(Api), "read", "how much of the forge's REST is open",
         default=Api.READ),
    _key("services.*.requests_per_second", kinds.COUNT, "–",
         "requests to this service, within `limits.requests_per_second`"),
    _key("services.*.concurrent_requests", kinds.COUNT, "–",
         "requests to this service at once, within `limits.concurrent_requests`"),
    _key("services.*.bodies", kinds.BODIES, "`{}`",
         "bytes of one request's body at some endpoints, in place of `limits.body`; of several "
         "that match, the most exact speaks", default=()),
    _key("services.*.budget.requests", kinds.TOTAL, "–",
         "requests in a session; what comes after is refused for good"),
    _key("services.*.budget.upload", kinds.SIZE, "–", "bytes sent in a session"),
    _key("services.*.budget.download", kinds.SIZE, "–", "bytes received in a session"),
    _key("services.*.budget.tokens", kinds.TOTAL, "–",
         "tokens of language models in a session, in and out, as their answers say"),
    _limit("requests_per_second", kinds.COUNT, "50", "requests to services"),
    _limit("concurrent_requests", kinds.COUNT, "256", "requests to services at once"),
    _limit("connections", kinds.COUNT, "256", "open at once"),
    _limit("connections_per_second", kinds.COUNT, "100", "new connections"),
    _limit("dns_per_second", kinds.COUNT, "100", "DNS questions"),
    _limit("upload", kinds.SIZE, "1GiB", "bytes sent in a session"),
    _limit("download", kinds.SIZE, "64GiB", "bytes received in a session"),
    _limit("body", kinds.SIZE, "256MiB", "bytes of one request's body"),
    _limit("body_time", kinds.DURATION, "5m",
           "in which 64 KiB of a body, or its end, must be sent or taken"),
    _limit("memory", kinds.SIZE, "8GiB", "that one process may allocate"),
    _limit("processes", kinds.COUNT, "2048", "in the sandbox"),
    _key("limits.cpus", kinds.CPUS, "–", "processors' worth of time for the whole sandbox, as 1.5",
         user=True),
    _limit("ttl", kinds.DURATION, "1d", "a session's whole life"),
    _limit("idle", kinds.DURATION, "4h",
           "a session's life without an allowed request that used a credential"),
    _limit("audit_per_second", kinds.COUNT, "200",
           "audit lines; beyond it they are counted in one"),
    _key("upstream.ca_file", kinds.PATH, "–", "certificates added to the system's roots"),
    _key("upstream.proxy", kinds.text("URL", _proxy), "–",
         "HTTP proxy for the gateway's own connections"),
    _key("upstream.private", _NAMES_ONLY, "`[]`",
         "hosts that may resolve to private addresses (never loopback or metadata)", default=()),
    _key("upstream.connect", kinds.CONNECT, "–", "dial this address instead, whatever it is",
         default=()),
)  # fmt: skip


def _gateway(name: str, shown: str, meaning: str) -> Key:
    default = None if shown == UNBOUNDED else int(shown)
    return Key(("gateway", name), kinds.COUNT, shown, meaning, default=default, user=True)


UNBOUNDED = "–"
"""How the default of a limit is shown that is only there where it is set."""

GATEWAY_KEYS = (
    _gateway("sessions", "1000", "sandboxes that are served at once"),
    _gateway("connections", "8192", "of all sandboxes, open at once; each takes two descriptors"),
    _gateway("connections_per_second", UNBOUNDED, "new connections of all sandboxes"),
    _gateway("requests_per_second", UNBOUNDED, "requests of all sandboxes to services"),
    _gateway("dns_per_second", UNBOUNDED, "DNS questions of all sandboxes"),
    _gateway("audit_per_second", UNBOUNDED,
             "audit lines of all sandboxes; beyond it they are counted"),
)  # fmt: skip
"""What holds over all sandboxes of one gateway. A policy speaks for one, so these stand in the
user's own config.toml alone."""

BY_PATH = {key.path: key for key in (*KEYS, *GATEWAY_KEYS)}

USER_KEYS = (
    *(key for key in KEYS if key.user or key.path == ("version",)),
    *GATEWAY_KEYS,
)
"""Keys of the user's own defaults: secrets by service name, limits, and the gateway's."""
