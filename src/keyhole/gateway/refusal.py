"""What a refused client and the person who runs it are told.

The reason codes here are of the gateway's own making; those of policy are in `model.decision`.
"""

from __future__ import annotations

import enum
import json
import shlex

from keyhole.inject.sigv4 import Flaw
from keyhole.model.decision import Reason
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.text import visible
from keyhole.policy import pushwords
from keyhole.wire import gitrefs, tlsalert
from keyhole.wire.lfsjson import MEDIA_TYPE, write_error

SNI_MISMATCH = "sni-mismatch"
SNI_MISSING = "sni-missing"
ECH = "ech"
NOT_TLS = "not-tls"
HELLO_MALFORMED = "hello-malformed"
CLIENT_LEFT = "client-left"
CLIENT_SILENT = "client-silent"
CLIENT_SLOW = "client-slow"
HTTP_MALFORMED = "http-malformed"
HTTP_UPGRADE = "http-upgrade"
HOST_MISMATCH = "host-mismatch"
INSPECTION_OFF = "inspection-off"
NOT_ADMITTING = "not-admitting"
FOREIGN_NAMESPACE = "foreign-namespace"
DOOR_CLOSED = "door-closed"
POLICY_CHANGED = "policy-changed"
GRANT_EXPIRED = "grant-expired"
IDLE = "idle"
TABLE_FULL = "name-table-full"
DNS_MALFORMED = "dns-malformed"
INTERNAL = "gateway-fault"
CLIENT_DISTRUSTS = "client-distrusts"
CLIENT_TLS = "client-tls"
UPSTREAM_TLS = "upstream-tls"
UPSTREAM_CERTIFICATE = "upstream-certificate"
UPSTREAM_MALFORMED = "upstream-malformed"
UPSTREAM_CLOSED = "upstream-closed"
UPSTREAM_SLOW = "upstream-slow"
ENCODING_REFUSED = "encoding-refused"
SECRET_SCRUBBED = "secret-scrubbed"  # noqa: S105 - a code
SECRET_REFLECTED = "secret-reflected"  # noqa: S105 - a code
DECOY_USED = "decoy-used"
BODY_TOO_LARGE = "body-too-large"
CREDENTIAL_IN_THE_CLEAR = "credential-in-the-clear"
CREDENTIAL_UNAVAILABLE = "credential-unavailable"
CREDENTIAL_REFUSED = "credential-refused"
DISK_FULL = "disk-full"


class Unfit(Exception):
    """A request that cannot go on, though policy allows it; `reason` is a stable code."""

    def __init__(self, reason: str, why: str, rule: str = "") -> None:
        super().__init__(why)
        self.reason = reason
        self.why = why
        self.rule = rule


class Form(enum.Enum):
    """What a client reads of an answer that is a refusal."""

    JSON = 0
    TEXT = 1
    """Git shows its user the lines of a text, and nothing of any other type."""
    LFS = 2
    """Clients of LFS show `message`."""


_WORDS: dict[str, str] = {
    Reason.NO_RULE: "no rule",
    Reason.PORT_NOT_GRANTED: "port not granted",
    Reason.GRANT_SPENT: "what was granted of it is used up",
    Reason.LITERAL_ADDRESS: "an address that no name was asked for",
    Reason.NAME_MALFORMED: "not a host's name",
    Reason.OVER_LIMIT: "over the limit",
    Reason.OVER_BUDGET: "the session's budget is used up",
    Reason.OVER_SHARE: "the session has its whole share of what sessions share; try again",
    Reason.ADDRESS_PRIVATE: "it resolves to a private address",
    Reason.ADDRESS_LOOPBACK: "it resolves to a loopback address",
    Reason.ADDRESS_LINK_LOCAL: "it resolves to a link-local address",
    Reason.ADDRESS_METADATA: "it resolves to a metadata address",
    Reason.ADDRESS_MULTICAST: "it resolves to a multicast address",
    Reason.ADDRESS_EMBEDDED: "it resolves to an IPv6 address that stands for an IPv4 address",
    Reason.ADDRESS_RESERVED: "it resolves to a reserved address",
    SNI_MISMATCH: "TLS asks for another name than DNS did",
    SNI_MISSING: "TLS names no host",
    ECH: "the TLS hello is encrypted, so its name cannot be checked",
    NOT_TLS: "not TLS",
    HELLO_MALFORMED: "the TLS hello is malformed",
    HTTP_MALFORMED: "the HTTP request is malformed",
    HTTP_UPGRADE: "HTTP would become another protocol",
    HOST_MISMATCH: "HTTP asks for another host than DNS did",
    INSPECTION_OFF: "it belongs to a service, and nothing is inspected in this session",
    NOT_ADMITTING: "nothing is admitted while the audit log cannot be written",
    Reason.NAME_UNRESOLVED: "the name does not resolve",
    Reason.UPSTREAM_UNREACHABLE: "it cannot be reached",
    Reason.PROXY_FAILED: "the proxy refused or cannot be reached",
    CLIENT_DISTRUSTS: "the client does not trust this session's CA",
    CLIENT_TLS: "TLS with the client failed",
    UPSTREAM_TLS: "TLS with the origin failed",
    UPSTREAM_CERTIFICATE: "the origin's certificate is not accepted",
    UPSTREAM_MALFORMED: "the origin's answer is malformed",
    UPSTREAM_CLOSED: "the origin closed the connection before it answered",
    UPSTREAM_SLOW: "the origin takes the body too slowly",
    CLIENT_SLOW: "the client sends or reads too slowly",
    ENCODING_REFUSED: "the answer is encoded so that it cannot be scanned for the secret",
    SECRET_REFLECTED: "the answer holds the secret where it cannot be replaced",
    CREDENTIAL_IN_THE_CLEAR: "a credential, or a field that redirects, in plain HTTP",
    BODY_TOO_LARGE: "the body is over limits.body",
    CREDENTIAL_UNAVAILABLE: "the credential cannot be had",
    DISK_FULL: "this host has no room for the push",
    CREDENTIAL_REFUSED: "the origin does not accept the credential",
    Reason.METHOD_REFUSED: "the method is not known",
    Reason.METHOD_OVERRIDE: "a field or the query names another method than the request has",
    Reason.BODY_NOT_GRANTED: "a body, which HTTP does not define for this method",
    Reason.WEBSOCKET_NOT_GRANTED: "a WebSocket is a grant of its own",
    Reason.PATH_MALFORMED: "the path can be read in two ways",
    Reason.QUERY_MALFORMED: "the query has characters that must be encoded",
    Reason.DNS_OVER_HTTPS: "DNS over HTTPS would resolve names past the gateway",
    Reason.DENIED_BY_RULE: "a deny rule of the policy",
    Reason.GUARDED_ENDPOINT: "the endpoint mints, lists or moves credentials or data",
    Reason.GRAPHQL: "GraphQL is not open: it names repositories by opaque ids and cannot be "
    "confined to those that are granted; REST can (gh api repos/OWNER/NAME/…)",
    Reason.REPOSITORY_NOT_GRANTED: "the repository is not granted",
    Reason.ENDPOINT_REFUSED: "not an endpoint of git",
    Reason.READ_ONLY: "the repository is granted for reading alone",
    Reason.PUSH_MALFORMED: "the push is malformed",
    Reason.FETCH_REFUSED: "the fetch is malformed, or asks for what is never allowed",
    Reason.LFS_REFUSED: "the request for large files is malformed, or not granted",
    Reason.REF_MALFORMED: "not a plain branch or tag name",
    Reason.REF_NAMESPACE: "only branches and tags can be pushed",
    Reason.REF_NOT_GRANTED: "push to that branch is not granted",
    Reason.REF_PROTECTED: "the branch is protected",
    Reason.REF_SYMBOLIC: "the ref stands for another branch on the server",
    Reason.REF_MOVED: "the ref is not there, or has moved",
    Reason.DEFAULT_BRANCH_UNKNOWN: "the remote's default branch could not be learnt",
    Reason.CREATE_NOT_GRANTED: "creating branches is not granted",
    Reason.FORCE_NOT_GRANTED: "force is not granted: to rewrite a branch, or to break the lock of "
    "another, needs `force = true` in the service's policy",
    Reason.DELETE_NOT_GRANTED: "deleting branches is not granted",
    Reason.TAG_NOT_GRANTED: "the tag is not granted",
    Reason.TAG_MOVE: "a tag is never moved or deleted",
    Reason.ANCESTRY_UNKNOWN: "it cannot be shown that the branch only moves forward",
    Reason.DENIED_PATH: "a file would change that deny_paths protects",
    Reason.PUSH_OPTION: "the push option is not allowed",
    Reason.PUSH_UNJUDGED: "the push could not be judged",
    POLICY_CHANGED: "the session's policy has changed, and no longer allows it",
    TABLE_FULL: "the session has asked for too many names",
    INTERNAL: "a fault of the gateway",
    Flaw.MISSING: "the AWS signature is missing",
    Flaw.FORM: "the AWS signature is not in a form that can be checked",
    Flaw.KEY: "the AWS signature is not by this sandbox's placeholder key",
    Flaw.SCOPE: "the AWS signature is for another service or region",
    Flaw.HEADERS: "the AWS signature does not cover the headers that it must",
    Flaw.DATE: "the AWS signature is of another time",
    Flaw.PAYLOAD: "the AWS signature covers the body in a way that cannot be signed anew",
    Flaw.WRONG: "the AWS signature is wrong",
}

_ALERTS = {
    SNI_MISMATCH: tlsalert.UNRECOGNIZED_NAME,
    SNI_MISSING: tlsalert.UNRECOGNIZED_NAME,
    HELLO_MALFORMED: tlsalert.DECODE_ERROR,
}

_FAILURES = frozenset(
    {
        Reason.NAME_UNRESOLVED, Reason.UPSTREAM_UNREACHABLE, Reason.PROXY_FAILED, UPSTREAM_TLS,
        UPSTREAM_CERTIFICATE, UPSTREAM_MALFORMED, UPSTREAM_CLOSED, UPSTREAM_SLOW, ENCODING_REFUSED,
        SECRET_REFLECTED, INTERNAL, CLIENT_DISTRUSTS, CLIENT_TLS, CREDENTIAL_UNAVAILABLE,
        CREDENTIAL_REFUSED, DISK_FULL,
    }
)  # fmt: skip
"""Reasons that are nobody's decision: policy allowed it, the network did not."""


def line(host: str, port: int, reason: str, why: str = "") -> str:
    """A refusal for a terminal: what, why (in words of its own, if any), what to type next."""
    where = visible(f"{host}:{port}" if port else host)
    verb = "failed" if reason in _FAILURES else "denied"
    said = f"{verb} {where} ({visible(why) or _WORDS.get(reason, str(reason))})"
    hint = _hint(visible(host), port, reason)
    return f"{said}; {hint}" if hint else said


def _hint(host: str, port: int, reason: str) -> str:
    pattern = host if port == DEFAULT_PORT else f"{host}:{port}"
    match reason:
        case Reason.NO_RULE | Reason.PORT_NOT_GRANTED:
            return f'allow it with egress.allow = ["{pattern}"]'
        case Reason.GRANT_SPENT:
            return f"`keyhole allow ID {pattern}` grants it again"
        case Reason.LITERAL_ADDRESS:
            return "connect by the host's name, and allow that with egress.allow"
        case Reason.ADDRESS_PRIVATE:
            return f'allow it with upstream.private = ["{host}"]'
        case Reason.ADDRESS_LOOPBACK | Reason.ADDRESS_LINK_LOCAL | Reason.ADDRESS_RESERVED:
            return f'allow it with upstream.connect: "{host}:{port}" = "ADDRESS:PORT"'
        case Reason.OVER_LIMIT | Reason.OVER_BUDGET:
            where = "your config.toml" if host.startswith("gateway.") else "the policy"
            return f"raise {host} in {where} if this is expected"
        case _ if reason == CLIENT_DISTRUSTS:
            return (
                "point it at /etc/keyhole/bundle.pem (SSL_CERT_FILE, REQUESTS_CA_BUNDLE, "
                "NODE_EXTRA_CA_CERTS and the like are set), or name the host in the service's "
                "unsafe_passthrough, which disables the credential"
            )
        case _:
            return ""


def alert(reason: str) -> bytes:
    """The TLS alert for a client whose hello came."""
    return tlsalert.fatal(_ALERTS.get(reason, tlsalert.ACCESS_DENIED))


def request_line(method: str, host: str, path: str, reason: str) -> str:
    """A refused or failed request for a terminal."""
    verb = "failed" if reason in _FAILURES else "denied"
    url = _url(host, path)
    said = f"{verb} {visible(method)} {url} ({_WORDS.get(reason, str(reason))})"
    return said if reason in _FAILURES else f"{said}; {_ask(method, url)}"


def request_why(method: str, host: str, path: str, reason: str) -> str:
    """The same for the client that asked: an agent reads it and can say what to type."""
    words = _WORDS.get(reason, str(reason))
    if reason == Reason.READ_ONLY:
        url = _url(host, path.removesuffix("/info/refs").removesuffix("/git-receive-pack"))
        return f"{words}; `keyhole why git push {shlex.quote(url)} BRANCH` says which rule"
    return words if reason in _FAILURES else f"{words}; {_ask(method, _url(host, path))}"


def more_refs_line(count: int) -> str:
    """The refs of a refused push that a terminal is not told by name."""
    return f"and {count} more ref{'s' if count > 1 else ''} of that push; the log has each"


def push_line(host: str, repository: str, ref: str, why: str) -> str:
    """A refused ref of a push for a terminal."""
    return visible(
        f"denied push of {ref} to {host}/{repository} ({why.removeprefix(pushwords.PREFIX)})"
    )


MAX_SHOWN_URL = 200
"""Characters of a URL in a line for a person."""


def _url(host: str, path: str) -> str:
    return visible(f"https://{host}{path}")[:MAX_SHOWN_URL]


def _ask(method: str, url: str) -> str:
    # The sandbox chose both, and a person will paste it into a shell (I11).
    flag = "" if method == "GET" else f" --method {shlex.quote(visible(method))}"
    return f"`keyhole why{flag} {shlex.quote(url)}` says which rule"


_PASSING = frozenset({Reason.OVER_LIMIT, Reason.OVER_SHARE, NOT_ADMITTING})
"""What the same request may meet no longer, a moment later."""

_NOT_FOUND = frozenset({Reason.REPOSITORY_NOT_GRANTED})
"""Answered as if it did not exist: whether it does is nobody's business (DESIGN §3)."""

_STATUS = {
    HTTP_MALFORMED: "400 Bad Request",
    Reason.PUSH_MALFORMED: "400 Bad Request",
    BODY_TOO_LARGE: "413 Content Too Large",
    Reason.OVER_LIMIT: "429 Too Many Requests",
    Reason.OVER_SHARE: "429 Too Many Requests",
    INTERNAL: "500 Internal Server Error",
    NOT_ADMITTING: "503 Service Unavailable",
    CREDENTIAL_REFUSED: "403 Forbidden",
    DISK_FULL: "507 Insufficient Storage",
}


_CLOSE = "Connection: close\r\n"


def http_reply(
    reason: str,
    rule: str,
    why: str = "",
    *,
    close: bool = True,
    extra: str = "",
    body: bool = True,
    form: Form = Form.JSON,
) -> bytes:
    """A complete HTTP answer in the form that every refusal has (DESIGN §3)."""
    failed = reason in _FAILURES
    status = _STATUS.get(reason, "502 Bad Gateway" if failed else "403 Forbidden")
    words = why or _WORDS.get(reason, str(reason))
    if reason in _NOT_FOUND:
        status, words = "404 Not Found", "not found"
        answer: dict[str, object] = {"error": words}
    else:
        answer = {"error": "failed" if failed else "denied", "rule": rule, "reason": reason}
        answer |= {"why": words, "retry": reason in _PASSING}
    match form:
        case Form.TEXT:
            media, text = "text/plain; charset=utf-8", f"keyhole: {words}\n".encode()
        case Form.LFS:
            media, text = MEDIA_TYPE.decode(), write_error(f"keyhole: {words}")
        case _:
            media, text = "application/json", json.dumps(answer).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(text)}\r\n{extra}{_CLOSE if close else ''}\r\n"
    )
    return head.encode() + (text if body else b"")


def push_reply(body: bytes) -> bytes:
    """An answer to a push in git's own form, which says itself what was refused."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache\r\n"
        b"Content-Length: %d\r\n\r\n%b"
        % (gitrefs.RESULT_TYPES[gitrefs.RECEIVE_PACK], len(body), body)
    )
