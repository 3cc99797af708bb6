"""What a refused client and the person who runs it are told.

The reason codes here are of the gateway's own making; those of policy are in `model.decision`.
"""

from __future__ import annotations

import json

from keyhole.model.decision import Reason
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.text import visible
from keyhole.wire import tlsalert

SNI_MISMATCH = "sni-mismatch"
SNI_MISSING = "sni-missing"
ECH = "ech"
NOT_TLS = "not-tls"
HELLO_MALFORMED = "hello-malformed"
CLIENT_LEFT = "client-left"
CLIENT_SILENT = "client-silent"
HTTP_MALFORMED = "http-malformed"
HTTP_UPGRADE = "http-upgrade"
HOST_MISMATCH = "host-mismatch"
INSPECTION_NOT_YET = "inspection-not-yet"
NOT_ADMITTING = "not-admitting"
FOREIGN_NAMESPACE = "foreign-namespace"
NAME_UNRESOLVED = "name-unresolved"
UPSTREAM_UNREACHABLE = "upstream-unreachable"
PROXY_FAILED = "proxy-failed"
DOOR_CLOSED = "door-closed"
IDLE = "idle"
TABLE_FULL = "name-table-full"
DNS_MALFORMED = "dns-malformed"
INTERNAL = "gateway-fault"

_WORDS: dict[str, str] = {
    Reason.NO_RULE: "no rule",
    Reason.PORT_NOT_GRANTED: "port not granted",
    Reason.LITERAL_ADDRESS: "an address that no name was asked for",
    Reason.OVER_LIMIT: "over the limit",
    Reason.ADDRESS_PRIVATE: "it resolves to a private address",
    Reason.ADDRESS_LOOPBACK: "it resolves to a loopback address",
    Reason.ADDRESS_LINK_LOCAL: "it resolves to a link-local address",
    Reason.ADDRESS_METADATA: "it resolves to a metadata address",
    SNI_MISMATCH: "TLS asks for another name than DNS did",
    SNI_MISSING: "TLS names no host",
    ECH: "the TLS hello is encrypted, so its name cannot be checked",
    NOT_TLS: "not TLS",
    HELLO_MALFORMED: "the TLS hello is malformed",
    HTTP_MALFORMED: "the HTTP request is malformed",
    HTTP_UPGRADE: "HTTP would become another protocol",
    HOST_MISMATCH: "HTTP asks for another host than DNS did",
    INSPECTION_NOT_YET: "it belongs to a service",
    NOT_ADMITTING: "nothing new is admitted",
    NAME_UNRESOLVED: "the name does not resolve",
    UPSTREAM_UNREACHABLE: "it cannot be reached",
    PROXY_FAILED: "the proxy refused or cannot be reached",
    TABLE_FULL: "the session has asked for too many names",
}

_ALERTS = {
    SNI_MISMATCH: tlsalert.UNRECOGNIZED_NAME,
    SNI_MISSING: tlsalert.UNRECOGNIZED_NAME,
    HELLO_MALFORMED: tlsalert.DECODE_ERROR,
}

_FAILURES = frozenset({NAME_UNRESOLVED, UPSTREAM_UNREACHABLE, PROXY_FAILED})
"""Reasons that are nobody's decision: policy allowed it, the network did not."""


def line(host: str, port: int, reason: str) -> str:
    """A refusal for a terminal: what, why, and what to type next."""
    where = visible(f"{host}:{port}" if port else host)
    verb = "failed" if reason in _FAILURES else "denied"
    said = f"{verb} {where} ({_WORDS.get(reason, str(reason))})"
    hint = _hint(visible(host), port, reason)
    return f"{said}; {hint}" if hint else said


def _hint(host: str, port: int, reason: str) -> str:
    pattern = host if port == DEFAULT_PORT else f"{host}:{port}"
    match reason:
        case Reason.NO_RULE | Reason.PORT_NOT_GRANTED:
            return f'allow it with egress.allow = ["{pattern}"]'
        case Reason.LITERAL_ADDRESS:
            return "connect by the host's name, and allow that with egress.allow"
        case Reason.ADDRESS_PRIVATE:
            return f'allow it with upstream.private = ["{host}"]'
        case Reason.ADDRESS_LOOPBACK | Reason.ADDRESS_LINK_LOCAL | Reason.ADDRESS_RESERVED:
            return f'allow it with upstream.connect: "{host}:{port}" = "ADDRESS:PORT"'
        case Reason.OVER_LIMIT:
            return f"raise {host} in the policy if this is expected"
        case _ if reason == INSPECTION_NOT_YET:
            return "services arrive with a later version"
        case _:
            return ""


def alert(reason: str) -> bytes:
    """The TLS alert for a client whose hello came."""
    return tlsalert.fatal(_ALERTS.get(reason, tlsalert.ACCESS_DENIED))


def http_reply(reason: str, rule: str, why: str) -> bytes:
    """A complete HTTP answer in the form that every refusal has (DESIGN §3)."""
    status = "400 Bad Request" if reason == HTTP_MALFORMED else "403 Forbidden"
    body = json.dumps(
        {"error": "denied", "rule": rule, "reason": reason, "why": why, "retry": False}
    ).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
