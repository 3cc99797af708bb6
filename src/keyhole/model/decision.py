"""A decision is a value: verdict, reason, rule. Deny is the zero of every part (I3).

Made by `policy.decide_*`, obeyed by the shells, written to the audit log. A decision cannot be
used as a bool, so that no caller drops its reason by accident.
"""

from __future__ import annotations

import enum
import ipaddress

from keyhole.model.value import dataclass

NO_RULE = "default"
"""The id of the rule that speaks when no other does: silence is no."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Verdict(enum.Enum):
    """May it happen?"""

    DENY = 0
    ALLOW = 1


class Reason(enum.StrEnum):
    """Stable codes that tests, the audit log and users' filters rely on."""

    NO_RULE = "no-rule"
    RULE = "rule"
    # names and ports
    PORT_NOT_GRANTED = "port-not-granted"
    LITERAL_ADDRESS = "literal-address"
    PASSTHROUGH = "unsafe-passthrough"
    GRANTED = "granted"
    GRANT_SPENT = "grant-spent"
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
    OVER_SHARE = "over-share"


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided, why, and which rule spoke."""

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
    """How a connection travels."""

    NONE = 0
    TUNNEL = 1
    INSPECT = 2


@dataclass(frozen=True, slots=True)
class EgressDecision(Decision):
    """A decision on a connection: tunnelled untouched, or inspected as a service's."""

    route: Route = Route.NONE


class DnsAnswer(enum.Enum):
    """What the gateway answers to a question."""

    NXDOMAIN = 0
    NODATA = 1
    ADDRESS = 2
    REFUSED = 3


@dataclass(frozen=True, slots=True)
class DnsDecision(Decision):
    """A decision on a DNS question; only ADDRESS tells the sandbox an address."""

    answer: DnsAnswer = DnsAnswer.NXDOMAIN


@dataclass(frozen=True, slots=True)
class AddressDecision(Decision):
    """A decision on an address; what is dialled is the address and port in here (STYLE 11)."""

    address: Address | None = None
    port: int = 0


@dataclass(frozen=True, slots=True)
class RequestDecision(Decision):
    """A decision on an inspected request, and whose credential it gets when it is allowed."""

    service: str | None = None
