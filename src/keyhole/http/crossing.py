"""Brings heads of HTTP/2 into the form of HTTP/1.1, so that one strict reader reads both (I4).

Called by the machines of HTTP/2. The rules of HTTP/2 alone are checked here (RFC 9113 §8.2, 8.3):
pseudo-fields, lower-case names, no field of a connection. No byte that could end a line of HTTP/1.1
passes; everything else is left to `request.py` and `response.py`.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from keyhole.http.body import MAX_TRAILER_BYTES, MAX_TRAILERS, may_follow_body
from keyhole.http.field import MAX_KNOWN_LINE, TOKEN_CHARACTER, parse_field
from keyhole.http.hpack import Pair
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.http.field import Field
    from keyhole.http.request import Treat

MAX_CHECKED = 64
"""Fields that are kept of one peer: those of a few heads."""

_is_name = re.compile(TOKEN_CHARACTER.replace(b"A-Z", b"") + rb"+").fullmatch
_is_visible = re.compile(rb"[!-~]+").fullmatch
_breaks_line = re.compile(rb"[\r\n\x00]").search
_is_status = re.compile(rb"[1-5][0-9][0-9]").fullmatch

_OF_REQUESTS = frozenset({b":method", b":scheme", b":authority", b":path", b":protocol"})
_OF_RESPONSES = frozenset({b":status"})
_READ = frozenset({b"host", b"cookie", b"te", b"content-length"})
_PRIVATE = frozenset(b"authorization cookie proxy-authorization set-cookie te".split())
_OF_CONNECTIONS = frozenset(
    b"connection keep-alive proxy-connection transfer-encoding upgrade".split()
)

_SWITCHING = b"101"
_BODILESS = frozenset({b"204", b"304"})
_PHRASES = {b"%d" % status: status.phrase.encode("ascii") for status in HTTPStatus}


def request_head(
    fields: Iterable[Pair],
    *,
    ended: bool,
    websocket_key: bytes,
    checked: CheckedFields | None = None,
) -> bytes:
    """A request as HTTP/1.1 writes it, up to its empty line. Raises Malformed.

    `ended` is whether no body follows. A WebSocket (RFC 8441) becomes the handshake of RFC 6455
    with this key.
    """
    special, rows = _split(fields, _OF_REQUESTS, checked)
    method, path = special.get(b":method", b""), special.get(b":path", b"")
    protocol = special.get(b":protocol")
    if not (_is_visible(method) and _is_visible(path) and path.startswith(b"/")):
        raise Malformed("a request has a :method, and a :path that begins with a slash")
    if special.get(b":scheme") != b"https":
        raise Malformed("a request has the :scheme https")
    lines = [b""]
    authority, length = special.get(b":authority"), None
    hosts: list[bytes] = []
    cookies: list[bytes] = []
    for pair in rows:
        name, value = pair
        if name not in _READ:
            lines.append(b"%b: %b" % pair)
        elif name == b"host":
            hosts.append(value)
        elif name == b"cookie":
            cookies.append(value)
        elif name == b"te" and value.lower() != b"trailers":
            raise Malformed("TE is something else than `trailers`")
        else:
            if name == b"content-length":
                length = value
            lines.append(b"%b: %b" % pair)
    lines.append(b"host: " + _one_name(authority, hosts))
    if cookies:
        # RFC 9113 §8.2.3: one field of HTTP/1.1 may come in several.
        lines.append(b"cookie: " + b"; ".join(cookies))
    if protocol is not None or method == b"CONNECT":
        if method != b"CONNECT" or protocol != b"websocket" or ended:
            raise Malformed("CONNECT is for WebSockets")
        method = b"GET"
        lines += (b"connection: upgrade", b"upgrade: websocket")
        lines.append(b"sec-websocket-key: " + websocket_key)
    elif ended:
        _check_no_body(length)
    elif length is None:
        lines.append(b"transfer-encoding: chunked")
    lines[0] = b"%b %b HTTP/1.1" % (method, path)
    return b"\r\n".join(lines)


def response_head(
    fields: Iterable[Pair], method: str, *, ended: bool, checked: CheckedFields | None = None
) -> bytes:
    """A response as HTTP/1.1 writes it, up to its empty line. Raises Malformed."""
    special, rows = _split(fields, _OF_RESPONSES, checked)
    status = special.get(b":status", b"")
    if not _is_status(status) or status == _SWITCHING:
        raise Malformed("a response has a :status, which is not 101")
    lines = [b"HTTP/1.1 %b %b" % (status, _PHRASES.get(status, b""))]
    length = None
    for name, value in rows:
        if name == b"content-length":
            length = value
        lines.append(b"%b: %b" % (name, value))
    if status[0] == ord("1"):
        if ended:
            raise Malformed("a stream ends with an interim response")
    elif ended:
        if method != "HEAD" and status not in _BODILESS:
            _check_no_body(length)
            if length is None:
                lines.append(b"content-length: 0")
    elif length is None:
        lines.append(b"transfer-encoding: chunked")
    return b"\r\n".join(lines)


def trailer_fields(fields: Iterable[Pair], treat: Treat | None) -> list[Field]:
    """The trailers that may be passed on. Raises Malformed."""
    _, rows = _split(fields, frozenset())
    kept = [parse_field(b"%b: %b" % pair) for pair in rows if may_follow_body(pair[0], treat)]
    if len(kept) > MAX_TRAILERS:
        raise Malformed(f"a body has at most {MAX_TRAILERS} trailers")
    if sum(len(field.line) for field in kept) > MAX_TRAILER_BYTES:
        raise Malformed(f"the trailers of a body have at most {MAX_TRAILER_BYTES} bytes")
    return kept


class CheckedFields(set[Pair]):
    """Fields of heads that one peer has sent, and that were found right: most come again.

    Kept as long as the connection, like those in the table of the peer's.
    """

    __slots__ = ()

    def note(self, pair: Pair) -> None:
        """Keep a field, unless it is long, or names a cookie or a credential."""
        if len(pair[1]) <= MAX_KNOWN_LINE and pair[0] not in _PRIVATE:
            if len(self) >= MAX_CHECKED:
                self.clear()
            self.add(pair)


def _split(
    fields: Iterable[Pair], allowed: frozenset[bytes], checked: CheckedFields | None = None
) -> tuple[dict[bytes, bytes], list[Pair]]:
    """The pseudo-fields, and the others."""
    known = CheckedFields() if checked is None else checked
    special: dict[bytes, bytes] = {}
    rows: list[Pair] = []
    for pair in fields:
        if pair in known:
            rows.append(pair)
            continue
        name, value = pair
        if name[:1] == b":":
            if rows or name not in allowed or name in special:
                raise Malformed("a pseudo-field is unknown, stands twice or behind other fields")
            special[name] = value
        else:
            if not _is_name(name):
                raise Malformed("the name of a field is empty, or not in lower case")
            if name in _OF_CONNECTIONS or (name == b"te" and allowed is not _OF_REQUESTS):
                raise Malformed("a field is of the connection, which HTTP/2 has no fields for")
            rows.append(pair)
        if _breaks_line(value) or value != value.strip(b" \t"):
            raise Malformed("a field's value has a line break, a NUL, or a space around it")
        if name[:1] != b":":
            known.note(pair)
    return special, rows


def _one_name(authority: bytes | None, hosts: list[bytes]) -> bytes:
    """The host of a request, which Host may repeat once (I4)."""
    names = hosts if authority is None else [authority, *hosts]
    if not names or not names[0] or len(hosts) > 1 or names[0].lower() != names[-1].lower():
        raise Malformed("a request has one name, as :authority or Host")
    return names[0]


def _check_no_body(length: bytes | None) -> None:
    if length is not None and length != b"0":
        raise Malformed("Content-Length announces a body that does not come")
