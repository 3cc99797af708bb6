"""Every key of a policy file, once: its type, default and meaning.

The reader, the JSON Schema, docs/policy-reference.md and `keyhole check --show` are made from this
table, so that they cannot disagree (I10).
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.inject.placeholder import TokenShape
from keyhole.inject.slots import GLOBAL_SLOTS, Slot, SlotLocation, parse_returned
from keyhole.model.commit_identity import CommitIdentity
from keyhole.model.errors import Unparsable
from keyhole.model.host import HostPattern
from keyhole.model.https_url import HttpsUrl
from keyhole.model.quantity import parse_duration
from keyhole.model.ref import parse_ref_glob
from keyhole.model.repository import Forge
from keyhole.model.rule import PATTERN, AccessRule
from keyhole.model.secret import SecretRef, SecretScheme
from keyhole.policy import kinds
from keyhole.policy.mcp_grant import (
    ServerRequest,
    read_endpoint,
    read_prompt,
    read_resource,
    read_tool,
)
from keyhole.policy.service_login import parse_client, parse_client_secret, parse_scope

if TYPE_CHECKING:
    from keyhole.policy.kinds import ValueKind

SERVICE = "*"
"""A placeholder in a key's path for the name of a service."""


class RuntimeName(enum.StrEnum):
    """The runtime of the sandbox."""

    BWRAP = "bwrap"
    DOCKER = "docker"
    PODMAN = "podman"


class ChangesMode(enum.StrEnum):
    """Where the changes of a sandbox go."""

    DIRECT = "direct"
    REVIEW = "review"


class ApiAccess(enum.StrEnum):
    """How much of a forge's REST and GraphQL is open. Each level has those before it."""

    OFF = "off"
    READ = "read"
    PULL_REQUESTS = "pull-requests"
    MERGE = "merge"

    def covers(self, other: ApiAccess) -> bool:
        """Whether this level has what the other opens."""
        levels = list(ApiAccess)
        return levels.index(self) >= levels.index(other)


class HttpVersion(enum.StrEnum):
    """A version of HTTP that the clients of a service are held to."""

    HTTP1 = "1.1"
    HTTP2 = "2"


class HomeMode(enum.StrEnum):
    """Whether the home of a bubblewrap sandbox outlives it."""

    FRESH = "fresh"
    KEEP = "keep"


class CacheName(enum.StrEnum):
    """A package manager whose cache is kept for later sandboxes."""

    PIP = "pip"
    NPM = "npm"
    UV = "uv"
    CARGO = "cargo"
    GO = "go"
    MAVEN = "maven"


class OnDecoy(enum.StrEnum):
    """The reaction to a decoy: a placeholder that is sent to a host which is not its own."""

    NOTE = "note"
    FREEZE = "freeze"


class AskKind(enum.StrEnum):
    """A kind of thing that a person is asked about while it waits."""

    HOSTS = "hosts"
    """A connection to a host that no rule names."""
    REQUESTS = "requests"
    """A request to a service that no rule of it names."""
    PUSHES = "pushes"
    """A push to a branch or tag that the service does not grant."""
    BUDGETS = "budgets"
    """A request after the share of a budget from which on its `ask` wants a question."""


ASKED_KINDS = (AskKind.HOSTS, AskKind.REQUESTS, AskKind.PUSHES)
"""The kinds that `approvals.ask` names."""


class PolicyKey(Struct, frozen=True):
    """One key. `shown` is its default in the documents; `default` in the code."""

    path: tuple[str, ...]
    kind: ValueKind
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


_FEATURE = re.compile(r"[a-z][a-z0-9-]{1,31}(?::[A-Za-z0-9._:/@+=-]{1,64})?")
_MODEL = re.compile(r"[A-Za-z0-9._:/@+*~-]{1,128}")
_OPERATION = re.compile(r"[A-Za-z*][A-Za-z0-9*-]{0,127}|(?:query|header|field):[a-z0-9._~-]{1,64}")


def _feature(value: str) -> str:
    if not _FEATURE.fullmatch(value):
        raise Unparsable("a feature is a word, as in 'web-search' or 'tool:NAME'")
    return value


def _model(value: str) -> str:
    if not _MODEL.fullmatch(value):
        raise Unparsable("a model is a name, as in 'claude-*-haiku-*'")
    return value


def _operation(value: str) -> str:
    if not _OPERATION.fullmatch(value):
        raise Unparsable("an operation is a name or a word, as in 'DescribeInstances' or 'copy'")
    return value


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


def _signing_key(value: str) -> str:
    scheme, _, path = value.partition(":")
    if scheme == "gpg":
        # A short id or an address could be another key's, too.
        if not re.fullmatch(r"[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64}", path):
            raise Unparsable(
                "a key of GnuPG is named by its fingerprint or its id of 16 digits; "
                "`gpg --list-secret-keys --with-fingerprint` shows them",
                "gpg:0123456789ABCDEF0123456789ABCDEF01234567",
            )
        return f"gpg:{path.upper()}"
    if scheme != "ssh" or not path.endswith(".pub") or not path.startswith(("~/", "/")):
        raise Unparsable(
            "a key to sign with is 'ssh:' and its public key file, or 'gpg:' and its fingerprint",
            "ssh:~/.ssh/agent_ed25519.pub",
        )
    return path


def _push_option(value: str) -> str:
    # A pkt-line holds one option; a line break in it would be the server's to interpret.
    if not re.fullmatch(r"[\x20-\x7e]{1,1000}", value):
        raise Unparsable("a push option is one line of printable ASCII")
    return value


def _kept(value: str) -> Slot:
    slot = Slot.parse(value)
    if slot.place is not SlotLocation.HEADER or slot.name.endswith("*"):
        raise Unparsable("one header is kept by its whole name", "header:x-user-id")
    if any(known.covers(slot.place, slot.name) for known in GLOBAL_SLOTS):
        raise Unparsable("the client's own credential never travels")
    return slot


def _cache(value: str) -> CacheName:
    words = [str(name) for name in CacheName]
    if value not in words:
        hint = kinds.nearest(value, words)
        raise Unparsable(f"one of {', '.join(words)} is expected", hint)
    return CacheName(value)


MAX_WAIT = 600.0
"""Seconds that a connection or request may wait for an answer: less than the gateway lets a silent
one live, and more than most clients wait."""

MAX_PENDING = 1000
"""Questions of one session that may wait at once; a person answers a few."""


def _ask_kind(value: str) -> AskKind:
    words = [str(kind) for kind in ASKED_KINDS]
    if value not in words:
        raise Unparsable(f"one of {', '.join(words)} is expected", kinds.nearest(value, words))
    return AskKind(value)


def _server_request(value: str) -> ServerRequest:
    words = [str(kind) for kind in ServerRequest]
    if value not in words:
        raise Unparsable(f"one of {', '.join(words)} is expected", kinds.nearest(value, words))
    return ServerRequest(value)


def _wait(value: str) -> float:
    seconds = parse_duration(value)
    if not 1 <= seconds <= MAX_WAIT:
        raise Unparsable("an answer is waited for from 1s to 10m")
    return seconds


def _pending(value: object) -> int:
    count = kinds.COUNT.read(value)
    if count > MAX_PENDING:
        raise Unparsable(f"at most {MAX_PENDING} questions wait at once")
    return int(count)


def _command(value: str) -> str:
    SecretRef.parse(f"{SecretScheme.EXEC}:{value}")  # the same words, and the same refusals
    return value


_PATTERNS = kinds.list_of("host patterns", HostPattern.parse)
_NAMES_ONLY = kinds.list_of("host patterns", _plain_host)
_RULES = kinds.list_of(
    '`"METHOD[,METHOD] /path/**"`, `"GET+body /path"`, `"WEBSOCKET /path"`, '
    '`"GRPC package.Service/Method"`',
    AccessRule.parse,
    PATTERN,
)
_BRANCHES = kinds.list_of("branch globs", parse_ref_glob)
_TAGS = kinds.list_of("tag globs", parse_ref_glob)
_REPOS = kinds.list_of("names", lambda value: value)
_PRESETS = kinds.list_of("names", lambda value: value)
_PUSH_OPTIONS = kinds.list_of("texts", _push_option)
_FILES = kinds.list_of("path globs", _file_glob)
_FEATURES = kinds.list_of("words", _feature)
_MODELS = kinds.list_of("names", _model)
_OPERATIONS = kinds.list_of("names or words", _operation)
_SLOTS = kinds.list_of('`"header:NAME"`, `"query:NAME"`, `"cookie:NAME"`', Slot.parse)
_RETURNED = kinds.list_of('`"cookie:NAME"`, `"header:NAME"`', parse_returned)
_KEPT = kinds.list_of('`"header:NAME"`', _kept)
_SECRET = kinds.text(
    "reference", SecretRef.parse, "^(store|keyring|file|exec|unsafe-env|login|github-app):.+$"
)
_URL = kinds.text("https URL", HttpsUrl.parse, "^https://[^#@]+$")
_SCOPES = kinds.list_of("scopes", parse_scope)
_CACHES = kinds.list_of(f"names: {', '.join(CacheName)}", _cache)
_SHAPE = kinds.text("shape", TokenShape.parse)
_CATALOGUE_NAME = kinds.text("catalogue name", read_service_name)
_TOOLS = kinds.ValueKind(
    '`"NAME*"`, `{ name = "NAME", where = { ARGUMENT = "VALUE*" } }`',
    read_tool,
    {
        "type": "array",
        "items": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "where": {"type": "object"}},
                },
            ]
        },
        "uniqueItems": True,
    },
    kinds.items_of,
)
_SERVER_REQUESTS = kinds.list_of(f"names: {', '.join(ServerRequest)}", _server_request)
_ASKED = kinds.list_of(f"names: {', '.join(ASKED_KINDS)}", _ask_kind)
_WAIT = kinds.text("duration", _wait, kinds.DURATION.schema["pattern"])
_PENDING = kinds.ValueKind(
    "number", _pending, {"type": "integer", "minimum": 1, "maximum": MAX_PENDING}
)

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
    # Services that build a preview of each branch, with the variables of the project.
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
    # Services that build a workspace in advance, with the secrets of the person or the
    # organisation.
    ".devcontainer/**",
    ".devcontainer.json",
    ".gitpod.yml",
    ".gitpod/**",
    ".ona/**",
    ".codesandbox/**",
)
"""Files that a service runs or obeys on a push to any branch, before a person merges it, with
secrets or rights that the sandbox lacks. Files that are read only from the default branch, which is
protected, are not here (`.github/dependabot.yml`, `CODEOWNERS`, `renovate.json`), nor are the
sources that a build runs."""


def _key(
    path: str,
    kind: ValueKind,
    shown: str,
    meaning: str,
    default: Any = None,  # noqa: ANN401 - of the key's kind
    *,
    user: bool = False,
) -> PolicyKey:
    return PolicyKey(tuple(path.split(".")), kind, shown, meaning, default, user)


def _limit(name: str, kind: ValueKind, shown: str, meaning: str) -> PolicyKey:
    value: Any = int(shown) if kind is kinds.COUNT else kind.read(shown)
    return PolicyKey(("limits", name), kind, shown, meaning, value, user=True)


KEYS = (
    _key("version", kinds.VERSION, "required", "of the policy's language"),
    _key("sandbox.runtime", kinds.choice(RuntimeName), "bwrap",
         "bubblewrap, or a container of an engine",
         default=RuntimeName.BWRAP),
    _key("sandbox.writable", kinds.PATHS, '`["."]`',
         "paths of the host, relative to the policy file",
         default=(".",)),
    _key("sandbox.readable", kinds.PATHS, "`[]`", "the same, read-only", default=()),
    _key("sandbox.unsafe_paths", kinds.PATHS, "`[]`",
         "paths that would be refused or masked", default=()),
    _key("sandbox.env", kinds.ENV, "`{}`", "variables set inside",
         default=()),
    _key("sandbox.pass_env", kinds.VARIABLES, "`[]`", "variables passed in from outside",
         default=()),
    _key("sandbox.changes", kinds.choice(ChangesMode), "direct",
         "whether changes go to your files, or are held until `keyhole apply`",
         default=ChangesMode.DIRECT),
    _key("sandbox.git_hooks", kinds.BOOL, "false", "run repository hooks inside",
         default=False),
    _key("sandbox.git_user", kinds.text('`"Name <mail>"`', CommitIdentity.parse), "the host's",
         "the author of commits inside"),
    _key("sandbox.sign", kinds.text('`"ssh:~/KEY.pub"`, `"gpg:FINGERPRINT"`', _signing_key), "–",
         "the key that signs commits of `git_user`; it stays outside"),
    _key("sandbox.image", kinds.TEXT, "–", "the image, for docker and podman"),
    _key("sandbox.volumes", kinds.VOLUMES, "`{}`",
         "directories that the engine keeps under a name, for docker and podman", default=()),
    _key("sandbox.home", kinds.choice(HomeMode), "keep for agents by name, else fresh",
         "whether the home stays for later runs of this project and policy; for bwrap"),
    _key("sandbox.caches", _CACHES, "those of `egress.presets`",
         "caches of package managers that stay for later runs of this project and policy; "
         "for bwrap"),
    _key("sandbox.publish", kinds.PUBLISHED, "`[]`",
         "ports inside that a browser of this host can open, each under a name of its own",
         default=()),
    _key("sandbox.host_ports", kinds.HOST_PORTS, "`[]`",
         "ports of this host's loopback that `localhost` inside leads to", default=()),
    _key("sandbox.inbound", kinds.INBOUND, "`[]`",
         "peers that may connect to a port of the pod, for Kubernetes", default=()),
    _key("egress.allow", _PATTERNS, "`[]`",
         "tunnelled hosts, never decrypted: `name[:port]`, port 443 unless given", default=()),
    _key("egress.presets", _PRESETS, "`[]`",
         "package indexes of this host's own package managers, for reading alone", default=()),
    _key("services.*.use", _CATALOGUE_NAME, "N",
         "the catalogue entry that gives hosts, header, paths and placeholder"),
    _key("services.*.hosts", _PATTERNS, "catalogue's",
         "required for a service of your own"),
    _key("services.*.secret", _SECRET, "none",
         "`store:`, `keyring:`, `file:`, `exec:`, `login:`, `github-app:` or `unsafe-env:`; "
         "absent: inspected without a credential", user=True),
    _key("services.*.secret_life", kinds.DURATION, "–",
         "how long the output of an `exec:` command is used; absent: as long as the session"),
    _key("services.*.login.url", _URL, "found by asking its host",
         "where the service itself is, for `keyhole login`"),
    _key("services.*.login.issuer", _URL, "the service names it",
         "who issues its tokens, if the service does not say so"),
    _key("services.*.login.client", kinds.text("client id", parse_client), "one is registered",
         "the id of a client that you registered with the issuer"),
    _key("services.*.login.client_secret", kinds.text("`store:NAME`", parse_client_secret), "none",
         "that client's secret, if it has one"),
    _key("services.*.login.scopes", _SCOPES, "those that the service asks for",
         "what the token may do"),
    _key("services.*.inject", kinds.INJECT, "catalogue's", "how the secret is written"),
    _key("services.*.allow", _RULES, "catalogue's",
         "requests that pass; required for a service of your own that is not a git service"),
    _key("services.*.allow_also", _RULES, "`[]`",
         "further requests that pass, beside `allow` or the catalogue's list", default=()),
    _key("services.*.deny", _RULES, "`[]`",
         "wins over `allow`; added to the catalogue's guarded endpoints", default=()),
    _key("services.*.features", _FEATURES, "`[]`",
         "what the provider of a model may do by itself, as in `web-search`", default=()),
    _key("services.*.models", _MODELS, "any",
         "models that may be used; `*` stands for any characters", default=()),
    _key("services.*.max_tokens", kinds.COUNT, "–",
         "how long the answers of a model to one request may be, all together"),
    _key("services.*.operations", _OPERATIONS, "`[]`",
         "operations that method and path do not tell apart, as in `Describe*` of AWS, "
         "`copy` of S3", default=()),
    _key("services.*.strip", _SLOTS, "catalogue's",
         "further places that are emptied of the client's own credentials"),
    _key("services.*.unsafe_keep", _KEPT, "`[]`",
         "client headers that pass although their names tell of a credential or a claim",
         default=()),
    _key("services.*.env", kinds.VARIABLES, "catalogue's",
         "variables that are set to the placeholder inside"),
    _key("services.*.placeholder", _SHAPE, "catalogue's",
         "the shape of the placeholder, as in `ghp_{alnum:36}`"),
    _key("services.*.encoded_slash", kinds.BOOL, "catalogue's, else false",
         "accept `%2F` in paths; both readings must be allowed"),
    _key("services.*.http", kinds.choice(HttpVersion), "either, HTTP/2 rather",
         "the one version of HTTP that clients may speak with its hosts"),
    _key("services.*.unsafe_passthrough", _PATTERNS, "`[]`",
         "hosts of the service that are tunnelled, for clients that pin; no credential",
         default=()),
    _key("services.*.unsafe_return", _RETURNED, "`[]`",
         "fields of answers that pass although they hand out a session or tell a digest",
         default=()),
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
    _key("services.*.api", kinds.choice(ApiAccess), "read",
         "how much of the forge's REST and GraphQL is open", default=ApiAccess.READ),
    _key("services.*.tools", _TOOLS, "`[]`",
         "of an MCP server: tools that may be called; others are not listed", default=()),
    _key("services.*.resources", kinds.list_of("URI globs", read_resource), "`[]`",
         "of an MCP server: resources that may be read", default=()),
    _key("services.*.prompts", kinds.list_of("names", read_prompt), "`[]`",
         "of an MCP server: prompts that may be fetched", default=()),
    _key("services.*.server_requests", _SERVER_REQUESTS, "`[]`",
         "of an MCP server: what it may ask of its client", default=()),
    _key("services.*.endpoints", kinds.list_of("paths with their queries", read_endpoint),
         "any path without a query", "of an MCP server: where messages go", default=()),
    _key("services.*.pin", kinds.BOOL, "false",
         "of an MCP server: refuse tools that are new or have changed since they were accepted",
         default=False),
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
    _key("services.*.budget.session", kinds.MONEY, "–",
         "money for language models in a session, by the tokens and `prices`"),
    _key("services.*.budget.day", kinds.MONEY, "–",
         "the same in a day (UTC), of all your sessions at this service together"),
    _key("services.*.budget.month", kinds.MONEY, "–", "the same in a month"),
    _key("services.*.budget.ask", kinds.PERCENT, "–",
         "the share of each amount of money from which on a person is asked, as `75%`"),
    _key("services.*.prices", kinds.PRICES, "catalogue's",
         "what a million tokens of a model cost, before the catalogue's prices; `*` at the end of "
         "a name covers all that begin so", default=(), user=True),
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
    _limit("home", kinds.SIZE, "16GiB",
           "of the kept home and caches together"),
    _limit("ttl", kinds.DURATION, "1d", "a session's whole life"),
    _limit("idle", kinds.DURATION, "4h",
           "a session's life without an allowed request that used a credential"),
    _limit("audit_per_second", kinds.COUNT, "200",
           "audit lines; beyond it they are counted in one"),
    _key("limits.on_decoy", kinds.choice(OnDecoy), "`note`",
         "when a placeholder is sent to a host that is not its own: note it in the log, or freeze "
         "the session until `keyhole resume`", default=OnDecoy.NOTE, user=True),
    _key("approvals.ask", _ASKED,
         '`["hosts", "requests"]` while a watch, a page or your desktop can answer, else `[]`',
         "what is held until a person answers, instead of being refused at once", user=True),
    _key("approvals.wait", _WAIT, "2m", "how long it is held; then it is refused",
         default=120.0, user=True),
    _key("approvals.most_pending", _PENDING, "32",
         "questions that may wait at once; what would be one more is refused",
         default=32, user=True),
    _key("approvals.command", kinds.text("command", _command), "–",
         "a command of this host that gets each question as JSON and may answer it; no shell reads "
         "it"),
    _key("upstream.ca_file", kinds.PATH, "–", "certificates added to the system's roots"),
    _key("upstream.proxy", kinds.text("URL", _proxy), "–",
         "HTTP proxy for the gateway's own connections"),
    _key("upstream.private", _NAMES_ONLY, "`[]`",
         "hosts that may resolve to private addresses (never loopback or metadata)", default=()),
    _key("upstream.connect", kinds.CONNECT, "–", "dial this address instead, whatever it is",
         default=()),
)  # fmt: skip


def _gateway(name: str, shown: str, meaning: str) -> PolicyKey:
    default = None if shown == UNBOUNDED else int(shown)
    return PolicyKey(("gateway", name), kinds.COUNT, shown, meaning, default=default, user=True)


UNBOUNDED = "–"
"""The default of a limit that does not exist unless it is set, in the documents."""

GATEWAY_KEYS = (
    _gateway("sessions", "1000", "sandboxes that are served at once"),
    _gateway("connections", "8192", "of all sandboxes, open at once; each takes two descriptors"),
    _gateway("connections_per_second", UNBOUNDED, "new connections of all sandboxes"),
    _gateway("requests_per_second", UNBOUNDED, "requests of all sandboxes to services"),
    _gateway("dns_per_second", UNBOUNDED, "DNS questions of all sandboxes"),
    _gateway("audit_per_second", UNBOUNDED,
             "audit lines of all sandboxes; beyond it they are counted"),
)  # fmt: skip
"""Limits of all sandboxes of one gateway together. A policy is for one sandbox, so these are only
in the user's own config.toml."""

DESKTOP_KEYS = (
    PolicyKey(("desktop", "notifications"), kinds.BOOL, "true",
              "whether questions are shown as notifications of your desktop, with buttons",
              default=True, user=True),
)  # fmt: skip
"""The person's own desktop, which no project speaks for."""

BY_PATH = {key.path: key for key in (*KEYS, *GATEWAY_KEYS, *DESKTOP_KEYS)}

USER_KEYS = (
    *(key for key in KEYS if key.user or key.path == ("version",)),
    *GATEWAY_KEYS,
    *DESKTOP_KEYS,
)
"""Keys of the user's own defaults: secrets by service name, limits, the gateway's and the
desktop's."""
