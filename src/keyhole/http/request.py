"""The head of a request to an inspected host, read strictly (RFC 9112 §3, 5–7).

Called by the gateway's interception for every request, so it is quick where a line was seen before.
A request is for one host and has one length; the gateway builds its own request from the parsed one
(I4). The caller knows which fields carry credentials (`Treatment`). Nothing is decided here.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from copy import copy

from msgspec import Struct

from keyhole.http.field import (
    HOP_BY_HOP,
    ONCE_IN_REQUESTS,
    TOKEN_CHARACTER,
    TWICE,
    Field,
    Memo,
    check_chunked,
    check_name,
    folded,
    overrides_method,
    parse_length,
    parse_tokens,
    remember,
    split_field,
    split_head,
    without,
)
from keyhole.model.errors import Malformed
from keyhole.model.redacted import redacted_repr
from keyhole.model.rule import METHODS, request_word

MAX_METHOD = 32
"""Bytes of a method; the longest registered one has 17."""

MAX_VARIETY = 16
"""Lines of one name in a memo: more than a client has agents, languages or types."""

CHUNKED = -1
"""The length of a body that comes in chunks."""


class Treatment(enum.Enum):
    """The treatment of a field that does not concern the framing."""

    DROP = 0
    KEEP = 1
    COLLECT = 2


Treat = Callable[[bytes], Treatment]
"""From a name in lower case to the treatment of its field."""


class _Special(enum.Enum):
    """A field that has a meaning here, or that is not worth a place in a memo."""

    READ = 0
    MEDIA = 1
    VARIES = 2
    """It is kept, and its lines are never the same: an id, a date."""
    OVERRIDES = 3
    """It names another method than the request line."""


_DROP, _KEEP, _COLLECT = Treatment
_READ, _MEDIA, _VARIES, _OVERRIDES = _Special
_SPECIAL: dict[bytes, _Special | Treatment] = (
    dict.fromkeys(HOP_BY_HOP, _DROP)
    | dict.fromkeys((b"accept", b"content-type"), _MEDIA)
    | dict.fromkeys(
        b"host content-length transfer-encoding connection upgrade expect te".split(), _READ
    )
)
_ONCE = {
    b"host": "a request has exactly one Host",
    b"content-length": "a request has at most one Content-Length",
    b"transfer-encoding": "a request has at most one Transfer-Encoding",
}
ROUTING_AND_FRAMING = frozenset(_SPECIAL)
"""Fields that the gateway reads, removes or writes itself."""

_OPTIONS = frozenset(b"close keep-alive upgrade te".split())
"""Options of Connection that nominate no field that could be in `lines`."""


# A target is visible ASCII without '#', in origin-form, or in absolute-form, whose path may be
# empty; `*` and authority-form do not match. A backslash in a path is a slash to some servers.
def request_line_pattern(scheme: str) -> re.Pattern[str]:
    """Reads requests; an absolute target must have this scheme."""
    return re.compile(
        rf"(?!(?i:CONNECT) )({TOKEN_CHARACTER.decode()}{{1,{MAX_METHOD}}}) "
        rf"(?:(?i:{scheme})://([A-Za-z0-9.:-]+)(?=[/? ])|(?=/))"
        r"((?:/[!\"$->@-\[\]-~]*)?)(?:\?([!\"$-~]*))? HTTP/1\.([01])",
        re.ASCII,
    )


_HTTPS = request_line_pattern("https")

_PREFACE_LINE = b"PRI * HTTP/2.0"
"""The first line of an HTTP/2 client (RFC 9113 §3.4), also of one that has not negotiated it."""

# A value that is passed on as it is: a space, and words of visible ASCII. Other values may be right
# too, and are checked more closely.
_is_tidy = re.compile(rb" [!-~]+(?: [!-~]+)*").fullmatch


# The types of PROTOCOL-HTTP2 and PROTOCOL-WEB, with a message format, and parameters as all have.
_is_grpc = re.compile(
    rb"content-type: application/grpc(?:-web(?:-text)?)?(?:\+[a-z0-9._+-]+)?[ \t]*(?:;.*)?\r\n",
    re.IGNORECASE,
).fullmatch


class RequestHead(Struct):
    """The request, and the fields that are passed on."""

    method: str
    path: str
    query: str | None
    """Path and query as sent: ASCII, undecoded, split at the first `?`."""
    http10: bool
    lines: list[bytes]
    """Fields that go on, as `Name: value` and CRLF, in the client's order."""
    collected: list[Field]
    """Fields that the caller asked for."""
    close: bool
    """The client will not use the connection again."""
    word: str
    """Its name in rules; empty if no rule can name it."""
    raw: bytes = b""
    """The head as it was received, in the form of HTTP/1.1: another policy reads it again."""
    length: int = 0
    """Bytes of the body, CHUNKED when it comes in chunks."""
    expects_continue: bool = False
    websocket: bool = False
    """The client asks to speak WebSocket, and nothing else."""
    dns_message: bool = False
    """A media type of DNS over HTTPS is named."""
    overrides: bool = False
    """A field names another method than the request line."""
    trailers: bool = False
    """The client reads fields behind the body of a response."""

    def copy(self) -> RequestHead:
        """The head of another request that is the same."""
        other = copy(self)
        other.lines, other.collected = self.lines.copy(), self.collected.copy()
        return other


class OutboundHead(Struct):
    """A request to an origin, in either version of HTTP."""

    method: str
    target: str
    """Path and query: ASCII, without a space or control."""
    authority: str
    lines: list[bytes]
    """Fields, as `Name: value` and CRLF; not Host, nor those that frame the message."""
    length: int = 0
    """Bytes of the body, CHUNKED when they are not known before."""
    expects_continue: bool = False
    websocket: bool = False
    trailers: bool = False
    """The client reads fields behind the body of a response."""

    # The credential is in a field or in the query (I1, I8).
    __repr__ = redacted_repr("target", "lines")


class RequestReader:
    """Reads the heads of requests to one host; it keeps nothing of a request or a connection."""

    __slots__ = ("_authorities", "_kinds", "_known", "_line", "_reads", "_variety", "treat")

    def __init__(
        self,
        host: str,
        port: int,
        treat: Treat,
        known: Memo,
        line: re.Pattern[str] = _HTTPS,
    ) -> None:
        """`host` is canonical. `known` may be shared by all readers with this host and `treat`.

        It maps a line as sent to the line that goes on. Only fields that are kept enter it, so
        it never holds a credential.
        """
        name = host.encode("ascii")
        self._authorities = frozenset((name, b"%b:%d" % (name, port)))
        self.treat = treat
        self._line = line
        self._known = known
        # From a name as sent to what becomes of its fields.
        self._kinds: dict[bytes, _Special | Treatment] = {}
        # How many lines of a name are in `known`.
        self._variety: dict[bytes, int] = {}
        # From a line as sent to name and value, for the fields that are read here.
        self._reads: dict[bytes, tuple[bytes, bytes]] = {}

    def parse(self, head: bytes) -> RequestHead:
        """Read a head, which ends before the empty line."""
        rows = iter(split_head(head))
        request = self._request_line(next(rows), head)
        lines = request.lines
        read: dict[bytes, bytes] = {}
        once: dict[bytes, bytes] = {}
        known, reads, kinds = self._known.get, self._reads.get, self._kinds.get
        for row in rows:
            line = known(row)
            if line is not None:
                if isinstance(line, tuple):
                    name, line = line
                    if name in once:
                        raise Malformed(TWICE)
                    once[name] = line
                lines.append(line)
                continue
            sent, _, value = row.partition(b":")
            kind = kinds(sent)
            if kind is _DROP and value and str(value, "latin-1").isprintable():
                continue  # a proper line, which is all that matters of it
            if kind is _VARIES and _is_tidy(value):
                lines.append(row + b"\r\n")
                continue
            pair = reads(row) or self._take(row, request, once)
            if pair is not None:
                name, value = pair
                read[name] = _join(name, read[name], value) if name in read else value
        host = read.get(b"host")
        if host is None:
            raise Malformed(_ONCE[b"host"])
        if host not in self._authorities and host.lower() not in self._authorities:
            self._check_host(host)
        if len(read) > 1:
            _apply(request, read)
            if request.length or request.websocket:
                request.word = request_word(
                    request.method,
                    body=request.length != 0,
                    websocket=request.websocket,
                    grpc=_is_call(request, once.get(b"content-type")),
                )
        return request

    def _request_line(self, row: bytes, head: bytes) -> RequestHead:
        found = self._line.fullmatch(str(row, "latin-1"))
        if found is None:
            raise Malformed(
                "HTTP/2 is agreed on by TLS, not by prior knowledge"
                if row == _PREFACE_LINE
                else "the request line is not `METHOD /path HTTP/1.1`"
            )
        method, authority, path, query, minor = found.groups()
        if authority is not None and authority.lower().encode() not in self._authorities:
            # RFC 9112 §3.2.2: an origin takes the authority from here and ignores Host.
            raise Malformed("the target is not on the host that was connected to")
        http10 = minor == "0"
        word = method if method in METHODS else ""
        return RequestHead(method, path or "/", query, http10, [], [], http10, word, head)

    def _check_host(self, host: bytes) -> None:
        """Check a Host that is spelled differently from the connection's name."""
        raise Malformed("Host is not the name that was connected to")

    def _take(
        self, row: bytes, request: RequestHead, once: dict[bytes, bytes]
    ) -> tuple[bytes, bytes] | None:
        """Read a line that is not in the memo. Returns name and value if they matter here; a line
        that may stand `once` is entered there."""
        sent, value = split_field(row)
        kind = self._kinds.get(sent)
        if kind is None:
            kind = self._learn(sent)
        if kind is _DROP:
            return None
        if kind is _OVERRIDES:
            request.overrides = True
            return None
        if kind is _READ:
            name = sent.lower()
            remember(self._reads, row, (name, value))
            return name, value
        if kind is _MEDIA:
            if _names_dns(value):
                request.dns_message = True
                return None
            kind = self.treat(sent.lower())
        name = sent.lower()
        alone = name in ONCE_IN_REQUESTS
        if alone and name in once:
            raise Malformed(TWICE)
        line = b"%b: %b\r\n" % (sent, value)
        if alone:
            once[name] = line
        if kind is _KEEP:
            request.lines.append(line)
            self._remember(sent, row, (name, line) if alone else line, once=alone)
        elif kind is _VARIES:
            request.lines.append(line)
        elif kind is _COLLECT:
            request.collected.append(Field(name, value, line))
        return None

    def _remember(
        self, sent: bytes, row: bytes, line: bytes | tuple[bytes, bytes], *, once: bool
    ) -> None:
        """Keep a line in the memo, unless lines of its name always differ."""
        variety = self._variety.get(sent, 0)
        if variety >= MAX_VARIETY:
            if not once:
                remember(self._kinds, sent, _VARIES)
            return
        remember(self._known, row, line)
        if len(self._known) == 1:
            self._variety.clear()  # it was full and starts anew
        remember(self._variety, sent, variety + 1)

    def _learn(self, sent: bytes) -> _Special | Treatment:
        """The treatment of fields with a new name."""
        check_name(sent)
        name = sent.lower()
        kind = _SPECIAL[name] if name in _SPECIAL else self.treat(name)
        plain = folded(name)
        if overrides_method(plain):
            kind = _OVERRIDES
        elif plain != name:
            if plain in _SPECIAL or plain in ONCE_IN_REQUESTS:
                raise Malformed("a field has almost the name of one that has a meaning here")
            if kind is _KEEP and self.treat(plain) is not _KEEP:
                kind = _DROP
        remember(self._kinds, sent, kind)
        return kind


def _join(name: bytes, earlier: bytes, value: bytes) -> bytes:
    """A field that comes in several lines is one list, or refused."""
    if name in _ONCE:
        raise Malformed(_ONCE[name])
    return earlier + b"," + value


def _apply(request: RequestHead, read: dict[bytes, bytes]) -> None:
    """Apply the fields other than Host to the request."""
    if b"transfer-encoding" in read:
        check_chunked(read[b"transfer-encoding"], b"content-length" in read, request.http10)
        request.length = CHUNKED
    elif b"content-length" in read:
        request.length = parse_length(read[b"content-length"])
    if b"expect" in read:
        if read[b"expect"].lower() != b"100-continue":
            raise Malformed("Expect is something else than `100-continue`")
        # RFC 9110 §10.1.1: without a body, or from HTTP/1.0, it means nothing.
        request.expects_continue = request.length != 0 and not request.http10
    if b"te" in read:
        request.trailers = b"trailers" in read[b"te"].lower()
    connection = read.get(b"connection")
    if connection is not None:
        if connection.lower() == b"keep-alive":
            request.close = False
        else:
            _connect(request, parse_tokens(connection), read.get(b"upgrade", b""))


def _connect(request: RequestHead, options: set[bytes], upgrade: bytes) -> None:
    """Apply Connection, and drop the fields that it nominates (RFC 9110 §7.6.1).

    It applies to the client's fields only: the gateway adds its own later, and Host and the framing
    are read in every case.
    """
    if b"close" in options:
        request.close = True
    elif b"keep-alive" in options:
        request.close = False
    if not options <= _OPTIONS:
        request.lines = without(request.lines, options)
        request.collected = [field for field in request.collected if field.name not in options]
    request.websocket = (
        b"upgrade" in options
        and upgrade.lower() == b"websocket"
        and request.method == "GET"
        and not request.http10
        # Two readers need not agree on where a body ends and frames begin.
        and request.length == 0
    )


def _is_call(request: RequestHead, media: bytes | None) -> bool:
    """Whether it is a gRPC call, also as gRPC-Web has it; `media` is the line of its type.

    No call has a query, and the origin must get the type: in HTTP/1.1, Connection may take it away.
    """
    if media is None or _is_grpc(media) is None:
        return False
    return request.query is None and media in request.lines


def _names_dns(value: bytes) -> bool:
    """RFC 8484, 8427 and their kin: names would be resolved past the gateway."""
    plain = value.lower().translate(None, b' \t"')
    return b"application/dns" in plain or b"dns-message" in plain
