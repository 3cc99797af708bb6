"""A decision is a value: verdict, reason, rule. Deny is the zero of every part (I3).

Made by `policy.decide_*`, obeyed by the shells, written to the audit log. A decision cannot be
used as a bool, so that no caller drops its reason by accident.
"""

from __future__ import annotations

import enum
import ipaddress

from msgspec import Struct

NO_RULE = "default"
"""The id of the rule that decides when no other does: what no rule names is denied."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Verdict(enum.Enum):
    """Whether something may happen."""

    DENY = 0
    ALLOW = 1


class Reason(enum.StrEnum):
    """Stable codes that tests, the audit log and filters rely on; `model.reasons` has the words."""

    NO_RULE = "no-rule"
    RULE = "rule"
    # names and ports
    PORT_NOT_GRANTED = "port-not-granted"
    LITERAL_ADDRESS = "literal-address"
    PASSTHROUGH = "unsafe-passthrough"
    GRANTED = "granted"
    GRANT_SPENT = "grant-spent"
    LEARNING = "learning"
    PUBLISHED = "published"
    HOST_PORT = "host-port"
    OWN_PORT = "own-port"
    FOREIGN_NAME = "foreign-name"
    # asked of a person
    HELD = "held"
    APPROVED = "approved"
    NOT_APPROVED = "not-approved"
    UNANSWERED = "unanswered"
    TOO_MANY_ASKED = "too-many-asked"
    # DNS
    TYPE_NOT_ANSWERED = "type-not-answered"
    CLASS_NOT_ANSWERED = "class-not-answered"
    NAME_MALFORMED = "name-malformed"
    # addresses
    PUBLIC_ADDRESS = "public-address"
    CONNECT_OVERRIDE = "connect-override"
    PRIVATE_GRANTED = "private-granted"
    ADDRESS_PRIVATE = "address-private"
    ADDRESS_LOOPBACK = "address-loopback"
    ADDRESS_LINK_LOCAL = "address-link-local"
    ADDRESS_MULTICAST = "address-multicast"
    ADDRESS_METADATA = "address-metadata"
    ADDRESS_EMBEDDED = "address-embedded-ipv4"
    ADDRESS_RESERVED = "address-reserved"
    # the network's fault, not a decision
    NAME_UNRESOLVED = "name-unresolved"
    UPSTREAM_UNREACHABLE = "upstream-unreachable"
    PROXY_FAILED = "proxy-failed"
    # requests
    METHOD_REFUSED = "method-refused"
    METHOD_OVERRIDE = "method-override"
    BODY_NOT_GRANTED = "body-not-granted"
    WEBSOCKET_NOT_GRANTED = "websocket-not-granted"
    PATH_MALFORMED = "path-malformed"
    QUERY_MALFORMED = "query-malformed"
    DNS_OVER_HTTPS = "dns-over-https"
    DENIED_BY_RULE = "denied-by-rule"
    GUARDED_ENDPOINT = "guarded-endpoint"
    GRAPHQL = "graphql-refused"
    GRAPHQL_CLOSED = "graphql-closed"
    MERGE_BY_REST = "merge-by-rest"
    # bodies
    BODY_UNJUDGED = "body-unjudged"
    FEATURE_CLOSED = "feature-closed"
    MODEL_NOT_GRANTED = "model-not-granted"
    OPERATION_CLOSED = "operation-closed"
    OPERATION_UNCLEAR = "operation-unclear"
    # MCP
    MCP_CLOSED = "mcp-closed"
    MCP_MALFORMED = "mcp-malformed"
    MCP_SESSION = "mcp-session"
    TOOL_NOT_GRANTED = "tool-not-granted"
    ARGUMENT_NOT_GRANTED = "argument-not-granted"
    RESOURCE_NOT_GRANTED = "resource-not-granted"
    PROMPT_NOT_GRANTED = "prompt-not-granted"
    TOOL_SEEN = "tool-seen"
    TOOL_DIFFERS = "tool-differs"
    TOOL_CHANGED = "tool-changed"
    # git
    REPOSITORY_NOT_GRANTED = "repository-not-granted"
    ENDPOINT_REFUSED = "git-endpoint-refused"
    READ_ONLY = "read-only"
    REF_MALFORMED = "ref-malformed"
    REF_NAMESPACE = "ref-namespace"
    REF_NOT_GRANTED = "ref-not-granted"
    REF_PROTECTED = "ref-protected"
    REF_SYMBOLIC = "ref-symbolic"
    REF_MOVED = "ref-moved"
    DEFAULT_BRANCH_UNKNOWN = "default-branch-unknown"
    CREATE_NOT_GRANTED = "create-not-granted"
    FORCE_NOT_GRANTED = "force-not-granted"
    DELETE_NOT_GRANTED = "delete-not-granted"
    TAG_NOT_GRANTED = "tag-not-granted"
    TAG_MOVE = "tag-move"
    ANCESTRY_UNKNOWN = "ancestry-unknown"
    DENIED_PATH = "denied-path"
    PUSH_MALFORMED = "push-malformed"
    PUSH_OPTION = "push-option-refused"
    PUSH_UNJUDGED = "push-unjudged"
    HELD_BACK = "held-back"
    UPSTREAM_REFUSED = "upstream-refused"
    FETCH_REFUSED = "fetch-refused"
    LFS_REFUSED = "lfs-refused"
    # limits
    WITHIN_LIMIT = "within-limit"
    OVER_LIMIT = "over-limit"
    OVER_BUDGET = "over-budget"
    SPENDING_UNKNOWN = "spending-unknown"
    USED = "used"
    OVER_SHARE = "over-share"
    # the client's TLS
    SNI_MISMATCH = "sni-mismatch"
    SNI_MISSING = "sni-missing"
    ECH = "ech"
    NOT_TLS = "not-tls"
    HELLO_MALFORMED = "hello-malformed"
    HTTP_VERSION = "http-version"
    CLIENT_DISTRUSTS = "client-distrusts"
    CLIENT_TLS = "client-tls"
    # the client
    CLIENT_LEFT = "client-left"
    CLIENT_SILENT = "client-silent"
    CLIENT_SLOW = "client-slow"
    HTTP_MALFORMED = "http-malformed"
    HTTP_UPGRADE = "http-upgrade"
    HOST_MISMATCH = "host-mismatch"
    BODY_TOO_LARGE = "body-too-large"
    DNS_MALFORMED = "dns-malformed"
    DECOY_USED = "decoy-used"
    COMMIT_SIGNED = "commit-signed"
    COMMIT_UNSIGNED = "commit-unsigned"
    CREDENTIAL_IN_THE_CLEAR = "credential-in-the-clear"
    SIGNATURE_MISSING = "signature-missing"
    SIGNATURE_FORM = "signature-form"
    SIGNATURE_KEY = "signature-key"
    SIGNATURE_SCOPE = "signature-scope"
    SIGNATURE_HEADERS = "signature-headers"
    SIGNATURE_DATE = "signature-date"
    SIGNATURE_PAYLOAD = "signature-payload"
    SIGNATURE_WRONG = "signature-wrong"
    # the session and its door
    INSPECTION_OFF = "inspection-off"
    NOT_ADMITTING = "not-admitting"
    FOREIGN_NAMESPACE = "foreign-namespace"
    DOOR_CLOSED = "door-closed"
    FROZEN = "frozen"
    POLICY_CHANGED = "policy-changed"
    GRANT_EXPIRED = "grant-expired"
    IDLE = "idle"
    TABLE_FULL = "name-table-full"
    # the origin
    UPSTREAM_TLS = "upstream-tls"
    UPSTREAM_CERTIFICATE = "upstream-certificate"
    UPSTREAM_MALFORMED = "upstream-malformed"
    UPSTREAM_CLOSED = "upstream-closed"
    UPSTREAM_SLOW = "upstream-slow"
    ENCODING_REFUSED = "encoding-refused"
    SECRET_SCRUBBED = "secret-scrubbed"  # noqa: S105 - a code
    SECRET_REFLECTED = "secret-reflected"  # noqa: S105 - a code
    CREDENTIAL_REFUSED = "credential-refused"
    # this host
    CREDENTIAL_UNAVAILABLE = "credential-unavailable"
    DISK_FULL = "disk-full"
    INTERNAL = "gateway-fault"


class Decision(Struct, frozen=True):
    """A verdict, its reason, and the rule that decided."""

    verdict: Verdict = Verdict.DENY
    reason: Reason = Reason.NO_RULE
    rule: str = NO_RULE

    @property
    def allowed(self) -> bool:
        """Whether the verdict is ALLOW."""
        return self.verdict is Verdict.ALLOW

    def __bool__(self) -> bool:
        raise TypeError("a decision is not a bool: look at .allowed, and keep its reason")


class Route(enum.Enum):
    """How a connection is passed on."""

    NONE = 0
    TUNNEL = 1
    INSPECT = 2


class EgressDecision(Decision, frozen=True):
    """A decision on a connection: tunnelled untouched, or inspected as a service's."""

    route: Route = Route.NONE


class DnsAnswer(enum.Enum):
    """The gateway's answer to a DNS question."""

    NXDOMAIN = 0
    NODATA = 1
    ADDRESS = 2
    REFUSED = 3


class DnsDecision(Decision, frozen=True):
    """A decision on a DNS question; only ADDRESS gives the sandbox an address."""

    answer: DnsAnswer = DnsAnswer.NXDOMAIN


class AddressDecision(Decision, frozen=True):
    """A decision on an address. The dialler connects to this very address and port (I4)."""

    address: Address | None = None
    port: int = 0


class RequestDecision(Decision, frozen=True):
    """A decision on an inspected request, and the service whose credential it gets when allowed."""

    service: str | None = None
