"""The text of refusals, for clients and for the user's terminal; `model.reasons` has the
sentences."""

from __future__ import annotations

import enum
import html
import json
import re
import shlex
from typing import TYPE_CHECKING

from keyhole.http.response import Reply
from keyhole.inject.canary import CANARY
from keyhole.inject.service_hosts import SERVICE_HOSTS
from keyhole.model.decision import Reason
from keyhole.model.host import DEFAULT_PORT
from keyhole.model.reasons import FORBIDDEN, NOT_FOUND, REASONS, info_of, sentence_of
from keyhole.model.text import visible
from keyhole.policy import push_messages
from keyhole.wire import git_refs, tls_alert
from keyhole.wire.lfs_json import MEDIA_TYPE, write_error
from keyhole.wire.websocket import MAX_CLOSE_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.model.decision import Decision


class Form(enum.Enum):
    """The form in which a client reads a refusal."""

    JSON = 0
    TEXT = 1
    """Git shows its user the lines of a text, and no other type."""
    LFS = 2
    """Clients of LFS show `message`."""
    GRPC = 3
    """A response without a body, whose fields have the status and the message of the call."""
    GRPC_WEB = 4
    """The same for clients of gRPC-Web, which read those fields too."""
    S3 = 5
    """SDKs show `Code` and `Message` of an XML element."""
    AWS = 6
    """The same for AWS's older protocol, in a further element."""


_is_web = re.compile(rb"content-type: application/grpc-web", re.IGNORECASE).match


def form_of_call(lines: Iterable[bytes]) -> Form:
    """How the client of a gRPC call with these fields reads a refusal."""
    return Form.GRPC_WEB if any(map(_is_web, lines)) else Form.GRPC


_is_form = re.compile(rb"content-type: application/x-www-form-urlencoded", re.IGNORECASE).match


def form_of_signed(service: str, query: str | None, lines: Iterable[bytes]) -> Form:
    """How the client of a request that is signed for an AWS service reads a refusal."""
    if service == "s3":
        return Form.S3
    asks = (query or "").startswith("Action=") or any(map(_is_form, lines))
    return Form.AWS if asks else Form.JSON


_ALERTS: dict[str, int] = {
    Reason.SNI_MISMATCH: tls_alert.UNRECOGNIZED_NAME,
    Reason.SNI_MISSING: tls_alert.UNRECOGNIZED_NAME,
    Reason.HELLO_MALFORMED: tls_alert.DECODE_ERROR,
    Reason.HTTP_VERSION: tls_alert.NO_APPLICATION_PROTOCOL,
}

_FAILURES = frozenset(code for code, info in REASONS.items() if info.failed)


def line(host: str, port: int, reason: str, why: str = "") -> str:
    """A refusal for a terminal: what was refused, why (with its own words, if any), what to type
    next."""
    where = visible(f"{host}:{port}" if port else host)
    verb = "failed" if reason in _FAILURES else "denied"
    said = f"{verb} {where} ({visible(why) or sentence_of(reason)})"
    hint = _hint(visible(host), port, reason)
    return f"{said}; {hint}" if hint else said


def _hint(host: str, port: int, reason: str) -> str:
    names = SERVICE_HOSTS.get(host, ())
    if names and reason == Reason.NO_RULE and port == DEFAULT_PORT:
        shown = " or ".join(f"`keyhole services show {name}`" for name in names)
        return f"{shown} says how to use it with a credential"
    pattern = host if port == DEFAULT_PORT else f"{host}:{port}"
    # The sandbox chose the name, and a person will paste it into a shell (I11).
    return info_of(reason).advise(host, port, shlex.quote(pattern))


def alert(reason: str) -> bytes:
    """The TLS alert after a client's hello."""
    return tls_alert.fatal(_ALERTS.get(reason, tls_alert.ACCESS_DENIED))


def request_line(method: str, host: str, path: str, reason: str, why: str = "") -> str:
    """A refused or failed request for a terminal; with the words for it, if it has its own."""
    verb = "failed" if reason in _FAILURES else "denied"
    url = _url(host, path)
    if why:
        return f"{verb} {visible(method)} {url} ({visible(why)})"
    said = f"{verb} {visible(method)} {url} ({sentence_of(reason)})"
    return said if reason in _FAILURES else f"{said}; {_ask(method, url)}"


def request_why(method: str, host: str, path: str, reason: str) -> str:
    """The same for the client that asked: an agent reads it and can tell the user what to type."""
    words = sentence_of(reason)
    if reason == Reason.READ_ONLY:
        url = _url(host, path.removesuffix("/info/refs").removesuffix("/git-receive-pack"))
        return f"{words}; `keyhole why git push {shlex.quote(url)} BRANCH` says which rule"
    return words if reason in _FAILURES else f"{words}; {_ask(method, _url(host, path))}"


def more_requests_line(host: str, reason: str) -> str:
    """Requests to a host that are refused like those that a terminal has named."""
    return (
        f"other requests to {visible(host)} are refused, too ({sentence_of(reason)}); "
        f"`keyhole log --denied --host {shlex.quote(visible(host))}` lists them"
    )


def budget_why(decision: Decision) -> str:
    """Why a budget refuses a request, for the client."""
    if decision.reason is Reason.SPENDING_UNKNOWN:
        return f"{decision.rule} cannot be kept: {sentence_of(decision.reason)}"
    period = {"day": "today (UTC)", "month": "in this month (UTC)"}
    where = period.get(decision.rule.rpartition(".")[2], "in this session")
    return f"{decision.rule} is used up {where}; asking again does not help"


def unpriced_line(service: str, model: str) -> str:
    """A line about a model whose price is not known, although a budget counts money."""
    shown = visible(model)
    name = f"model {shown}" if model else "a model that its answers do not name"
    price = '{ input = "… USD", output = "… USD" }'
    return (
        f"the price of {name} of {service} is not known: it is counted at twice the dearest one"
        f' that is; `prices = {{ "{shown or "*"}" = {price} }}` in [services.{service}] says it'
    )


def frozen_line(session: str, owner: str, host: str) -> str:
    """The line about a session that was frozen, and what to type next."""
    what = "the made-up key of a canary file"
    if owner != CANARY:
        what = f"the placeholder of services.{owner}"
    return (
        f"this session is frozen: {what} was sent to {visible(host)}. Nothing passes any more. "
        f"`keyhole log --session {session}` shows what happened; `keyhole resume {session}` opens "
        f"the session again, `keyhole stop {session}` ends it"
    )


def more_refs_line(count: int) -> str:
    """The refs of a refused push that a terminal does not list by name."""
    return f"and {count} more ref{'s' if count > 1 else ''} of that push; the log has each"


def push_line(host: str, repository: str, ref: str, why: str) -> str:
    """A refused ref of a push for a terminal."""
    return visible(
        f"denied push of {ref} to {host}/{repository} ({why.removeprefix(push_messages.PREFIX)})"
    )


MAX_SHOWN_URL = 200
"""Characters of a URL in a line for a person."""


def _url(host: str, path: str) -> str:
    return visible(f"https://{host}{path}")[:MAX_SHOWN_URL]


def _ask(method: str, url: str) -> str:
    # The sandbox chose both, and a person will paste it into a shell (I11).
    flag = "" if method == "GET" else f" --method {shlex.quote(visible(method))}"
    return f"`keyhole why{flag} {shlex.quote(url)}` says which rule"


_PASSING = frozenset(code for code, info in REASONS.items() if info.retry)
"""Reasons that may no longer hold for the same request a moment later."""

_NOT_FOUND = frozenset(code for code, info in REASONS.items() if info.status == NOT_FOUND)
"""Reasons that are answered as "not found", so that the existence is not revealed."""

_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    413: "Content Too Large",
    421: "Misdirected Request",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


def phrase_of(status: int) -> str:
    """The reason phrase of a status that the gateway answers with itself."""
    return _PHRASES.get(status, "OK" if status < 400 else "Refused")


def http_reply(
    reason: str, rule: str, why: str = "", *, retry_after: int = 0, form: Form = Form.JSON
) -> Reply:
    """A complete response in the form that every refusal has."""
    if form in _GRPC_TYPES:
        return _grpc_reply(reason, why, form, retry_after)
    failed = reason in _FAILURES
    status = info_of(reason).status
    status = status if status in _PHRASES else FORBIDDEN  # of an allowed request that was cut
    words = why or sentence_of(reason)
    if reason in _NOT_FOUND:
        words = "not found"
        answer: dict[str, object] = {"error": words, "message": words}
    else:
        answer = {"error": "failed" if failed else "denied", "rule": rule, "reason": reason}
        # GitHub's and other clients show `message` to their users, and no other member.
        answer |= {"message": f"keyhole: {words}", "why": words, "retry": reason in _PASSING}
    match form:
        case Form.TEXT:
            media, text = "text/plain; charset=utf-8", f"keyhole: {words}\n".encode()
        case Form.LFS:
            media, text = MEDIA_TYPE.decode(), write_error(f"keyhole: {words}")
        case Form.S3 | Form.AWS:
            media, text = "text/xml", _xml_error(words, wrapped=form is Form.AWS)
        case _:
            media, text = "application/json", json.dumps(answer).encode()
    lines: tuple[bytes, ...] = (f"Content-Type: {media}\r\n".encode(),)
    if retry_after:
        lines += (b"Retry-After: %d\r\n" % retry_after,)
    return Reply(status, _PHRASES[status], lines, text)


def _xml_error(words: str, *, wrapped: bool) -> bytes:
    said = html.escape(visible(words), quote=False)
    error = f"<Error><Code>AccessDenied</Code><Message>keyhole: {said}</Message></Error>"
    text = f"<ErrorResponse>{error}</ErrorResponse>" if wrapped else error
    return f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()


_GRPC_TYPES = {Form.GRPC: b"application/grpc", Form.GRPC_WEB: b"application/grpc-web+proto"}

MAX_GRPC_MESSAGE = 1024
"""Bytes of an encoded message: clients bound the fields of a response at 8 KiB in all."""


def _grpc_reply(reason: str, why: str, form: Form, retry_after: int) -> Reply:
    """gRPC's `Trailers-Only`: 200, and the status of the call in the head (PROTOCOL-HTTP2)."""
    words = "not found" if reason in _NOT_FOUND else why or sentence_of(reason)
    said = f"keyhole: {words} ({reason})" if reason not in _NOT_FOUND else f"keyhole: {words}"
    lines: tuple[bytes, ...] = (
        b"Content-Type: %b\r\n" % _GRPC_TYPES[form],
        b"Grpc-Status: %d\r\n" % info_of(reason).grpc,
        b"Grpc-Message: %b\r\n" % _grpc_encoded(said),
    )
    if retry_after:
        lines += (b"Grpc-Retry-Pushback-Ms: %d\r\n" % (retry_after * 1000),)
    return Reply(200, "OK", lines, b"")


def _grpc_encoded(message: str) -> bytes:
    """PROTOCOL-HTTP2, Percent-Encoded: what is not visible ASCII or a space, and `%`."""
    text = message.encode("utf-8", "replace")
    plain = b"".join(
        b"%c" % octet if 0x20 <= octet < 0x7F and octet != 0x25 else b"%%%02X" % octet
        for octet in text
    )
    cut = plain[:MAX_GRPC_MESSAGE]
    # An escape that the cut has halved would make clients show the whole message undecoded.
    return cut[: cut.rfind(b"%")] if b"%" in cut[-2:] else cut


def push_reply(body: bytes) -> Reply:
    """A response to a push in git's own form, which contains the refusal."""
    media = b"Content-Type: %b\r\n" % git_refs.RESULT_TYPES[git_refs.RECEIVE_PACK]
    return Reply(200, "OK", (media, b"Cache-Control: no-cache\r\n"), body)


_parentheses = re.compile(r" \([^()]{1,200}\)")


def close_reason(why: str) -> str:
    """The reason with which a WebSocket is closed. A long one goes without what stands in
    parentheses, or ends with its last whole clause: the audit log has all of it."""
    full = f"keyhole: {why}"
    for text in (full, _parentheses.sub("", full)):
        if len(text.encode("utf-8", "replace")) <= MAX_CLOSE_REASON:
            return text
    cut = text.encode("utf-8", "replace")[: MAX_CLOSE_REASON - len(" …".encode())]
    fits = cut.decode("utf-8", "ignore")
    return f"{fits.rpartition('; ')[0] or fits} …"
