"""The head of a request to an inspected host, read strictly into what goes on (RFC 9112 §3, 5–7).

Called by the gateway's interception for every request, so it is quick where a line was seen before.
A request is for one host, has one length, and is written anew from what was read here, never copied
(I4). Which fields carry credentials is the caller's knowledge (`Treatment`); who may ask for what
is decided elsewhere.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

from keyhole.model.rule import METHODS, request_word
from keyhole.model.value import dataclass
from keyhole.wire.httpfield import (
    HOP_BY_HOP,
    ONCE_IN_REQUESTS,
    TOKEN_CHARACTER,
    TWICE,
    Field,
    Malformed,
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

MAX_METHOD = 32
"""Bytes of a method; the longest registered one has 17."""

MAX_VARIETY = 16
"""Lines of one name in a memo: more than a client has agents, languages or types."""

CHUNKED = -1
"""The length of a body that comes in chunks."""


class Treatment(enum.Enum):
    """What becomes of a field that has no meaning to the framing."""

    DROP = 0
    KEEP = 1
    COLLECT = 2


Treat = Callable[[bytes], Treatment]
"""From a name in lower case to what becomes of its field."""


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
        b"host content-length transfer-encoding connection upgrade expect".split(), _READ
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
"""What stands in Connection and nominates no field that could be in `lines`."""

# A target is visible ASCII without '#', in origin-form, or in absolute-form, whose path may be
# empty; `*` and authority-form do not match. A backslash in a path is a slash to some servers.
_REQUEST_LINE = re.compile(
    rf"(?!(?i:CONNECT) )({TOKEN_CHARACTER.decode()}{{1,{MAX_METHOD}}}) "
    r"(?:(?i:https)://([A-Za-z0-9.:-]+)(?=[/? ])|(?=/))"
    r"((?:/[!\"$->@-\[\]-~]*)?)(?:\?([!\"$-~]*))? HTTP/1\.([01])",
    re.ASCII,
)

# What stands behind a colon and goes on as it is: a space, and words of visible ASCII. Other values
# may be right, too, and are looked at more closely.
_is_tidy = re.compile(rb" [!-~]+(?: [!-~]+)*").fullmatch


@dataclass(slots=True)
class RequestHead:
    """What was asked, and the fields that go on."""

    method: str
    path: str
    query: str | None
    """Path and query as sent: ASCII, undecoded, split at the first `?`."""
    http10: bool
    lines: list[bytes]
    """Fields that go on, as `Name: value` and CRLF, in the client's order."""
    collected: list[Field]
    """Fields that the caller wants to see."""
    close: bool
    """The client will not use the connection again."""
    word: str
    """How rules name it; empty where none can."""
    length: int = 0
    """Bytes of the body, CHUNKED when it comes in chunks."""
    expects_continue: bool = False
    websocket: bool = False
    """The client asks to speak WebSocket, and nothing else."""
    dns_message: bool = False
    """A media type of DNS over HTTPS is named."""
    overrides: bool = False
    """A field names another method than the request line."""


class RequestReader:
    """Reads the heads of requests to one host; it keeps nothing of a request or a connection."""

    __slots__ = ("_authorities", "_kinds", "_known", "_reads", "_treat", "_variety")

    def __init__(self, host: str, port: int, treat: Treat, known: Memo) -> None:
        """`host` is canonical. `known` may be shared by all readers with this host and `treat`.

        It maps a line as sent to the line that goes on. Only fields that are kept enter it, so
        it never holds a credential.
        """
        name = host.encode("ascii")
        self._authorities = frozenset((name, b"%b:%d" % (name, port)))
        self._treat = treat
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
        request = self._request_line(next(rows))
        lines = request.lines
        read: dict[bytes, bytes] = {}
        known, reads, kinds = self._known.get, self._reads.get, self._kinds.get
        for row in rows:
            line = known(row)
            if line is not None:
                if isinstance(line, tuple):
                    name, line = line
                    if name in read:
                        raise Malformed(TWICE)
                    read[name] = b""
                lines.append(line)
                continue
            pair = reads(row)
            if pair is None:
                sent, _, value = row.partition(b":")
                kind = kinds(sent)
                if (kind is _VARIES or kind is _DROP) and _is_tidy(value):
                    if kind is _VARIES:
                        lines.append(row + b"\r\n")
                    continue
                pair = self._take(row, request, read)
            if pair is not None:
                name, value = pair
                read[name] = _join(name, read[name], value) if name in read else value
        host = read.get(b"host")
        if host is None:
            raise Malformed(_ONCE[b"host"])
        if host not in self._authorities and host.lower() not in self._authorities:
            raise Malformed("Host is not the name that was connected to")
        if len(read) > 1:
            _apply(request, read)
            if request.length or request.websocket:
                request.word = request_word(
                    request.method, body=request.length != 0, websocket=request.websocket
                )
        return request

    def _request_line(self, row: bytes) -> RequestHead:
        found = _REQUEST_LINE.fullmatch(str(row, "latin-1"))
        if found is None:
            raise Malformed("the request line is not `METHOD /path HTTP/1.1`")
        method, authority, path, query, minor = found.groups()
        if authority is not None and authority.lower().encode() not in self._authorities:
            # RFC 9112 §3.2.2: an origin takes the authority from here and ignores Host.
            raise Malformed("the target is not on the host that was connected to")
        http10 = minor == "0"
        word = method if method in METHODS else ""
        return RequestHead(method, path or "/", query, http10, [], [], http10, word)

    def _take(
        self, row: bytes, request: RequestHead, read: dict[bytes, bytes]
    ) -> tuple[bytes, bytes] | None:
        """Read a line that is in no memo: name and value, if they are to be read here."""
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
            kind = self._treat(sent.lower())
        name = sent.lower()
        once = name in ONCE_IN_REQUESTS
        if once:
            if name in read:
                raise Malformed(TWICE)
            read[name] = b""
        line = b"%b: %b\r\n" % (sent, value)
        if kind is _KEEP:
            request.lines.append(line)
            self._remember(sent, row, (name, line) if once else line, once=once)
        elif kind is _VARIES:
            request.lines.append(line)
        elif kind is _COLLECT:
            request.collected.append(Field(name, value, line))
        return None

    def _remember(
        self, sent: bytes, row: bytes, line: bytes | tuple[bytes, bytes], *, once: bool
    ) -> None:
        """Keep a line in the memo, unless the name is one whose lines are never the same."""
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
        """What becomes of fields with a name that was not seen before."""
        check_name(sent)
        name = sent.lower()
        kind = _SPECIAL[name] if name in _SPECIAL else self._treat(name)
        plain = folded(name)
        if overrides_method(plain):
            kind = _OVERRIDES
        elif plain != name:
            if plain in _SPECIAL or plain in ONCE_IN_REQUESTS:
                raise Malformed("a field has almost the name of one that has a meaning here")
            if kind is _KEEP and self._treat(plain) is not _KEEP:
                kind = _DROP
        remember(self._kinds, sent, kind)
        return kind


def _join(name: bytes, earlier: bytes, value: bytes) -> bytes:
    """A field that comes in several lines is one list, or refused."""
    if name in _ONCE:
        raise Malformed(_ONCE[name])
    return earlier + b"," + value


def _apply(request: RequestHead, read: dict[bytes, bytes]) -> None:
    """What the fields beside Host mean for the request."""
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
    connection = read.get(b"connection")
    if connection is not None:
        if connection.lower() == b"keep-alive":
            request.close = False
        else:
            _connect(request, parse_tokens(connection), read.get(b"upgrade", b""))


def _connect(request: RequestHead, options: set[bytes], upgrade: bytes) -> None:
    """Do what Connection says, and drop what it nominates (RFC 9110 §7.6.1).

    It speaks of the client's fields only: what the gateway adds comes later, and Host and the
    framing are read whatever it says.
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
        # Where a body ends and frames begin, two readers need not agree.
        and request.length == 0
    )


def _names_dns(value: bytes) -> bool:
    """RFC 8484, 8427 and their kin: names would be resolved past the gateway."""
    plain = value.lower().translate(None, b' \t"')
    return b"application/dns" in plain or b"dns-message" in plain
