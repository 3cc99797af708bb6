"""The head of an origin's response, parsed strictly into the one for the client (RFC 9112 §4–7).

Called by the gateway's interception for every response. The origin is trusted for its own data, not
for the connection: if two readers could disagree on where a body ends, the client might read one
response as two. Secrets in a head are searched for elsewhere.
"""

from __future__ import annotations

import enum
import re
from copy import copy

from msgspec import Struct, field

from keyhole.http.field import (
    HOP_BY_HOP,
    ONCE_IN_RESPONSES,
    TWICE,
    Field,
    Memo,
    check_chunked,
    check_name,
    parse_length,
    parse_tokens,
    remember,
    split_field,
    split_head,
    without,
)
from keyhole.http.request import Treat, Treatment
from keyhole.model.errors import Malformed

NO_LENGTH = -1
"""The length of a body that announces none."""


class Framing(enum.Enum):
    """How the end of the body is found."""

    NONE = 0
    LENGTH = 1
    CHUNKED = 2
    CLOSE = 3


_, _LENGTH, _CHUNKED, _UNTIL_CLOSED = Framing

# RFC 9112 §4: the reason may be empty; without its space, too, as common servers send it.
_STATUS_LINE = re.compile(
    rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\x20-\x7e\x80-\xff\t]*))?",
)
# Charsets in which ASCII is not written as ASCII; a client may ask for one (I7).
_UNREADABLE = re.compile(
    rb"charset="
    rb"(?:utf-?(?:16|32|7)|ucs|iso-10646|unicode|ibm|cp(?:037|500|1047)|ebcdic|iso-2022|hz-)"
)
_AROUND_A_CHARSET = b" \t\"'\\"
"""Spaces, quotes and escapes that clients skip. They are removed before the search: a pattern that
allows for any number of them at three places takes cubic time (I12)."""
_ENCODING = b"content-encoding"
_MESSAGE_ENCODINGS = frozenset({b"grpc-encoding", b"connect-content-encoding"})
_SEVERAL = b"several"
"""A name for two encodings that differ: no scanner knows it."""
_MESSAGES = (b"application/grpc", b"application/connect+")
_EVENTS = b"application/vnd.amazon.eventstream"
_IN_BASE64 = b"application/grpc-web-text"
"""A type in which each rendering of a secret would have to be found in Base64 once more (I7)."""
_SWITCHING = 101
_NO_CONTENT = 204
_NOT_MODIFIED = 304

_READ = frozenset(
    b"content-length transfer-encoding connection upgrade"
    b" sec-websocket-accept sec-websocket-protocol sec-websocket-extensions".split()
)
_LISTS = frozenset(b"connection upgrade sec-websocket-extensions".split())
"""Fields of `_READ` that may come in several lines."""

# Alt-Svc would send the client to HTTP/3 or another port, where no door is.
NOT_FOR_THE_CLIENT = HOP_BY_HOP | {b"alt-svc"} | _READ
"""Fields that speak of the origin's connection, or that the gateway writes itself."""

_OPTIONS = frozenset(b"close keep-alive upgrade".split())
"""Options of Connection that nominate no field that could be in `lines`."""


class ResponseHead(Struct):
    """The response, and the fields that are passed on."""

    status: int
    minor: int
    """The origin speaks HTTP/1.`minor`."""
    start: bytes
    """The status line for the client, CRLF included; always HTTP/1.1."""
    lines: list[bytes]
    """Fields that go on, as `Name: value` and CRLF, in the origin's order."""
    close: bool
    """The origin will not use the connection again, or should not be trusted to."""
    framing: Framing = Framing.NONE
    length: int = NO_LENGTH
    """Bytes of the body; with `Framing.NONE`, what a GET would have had if the origin said so."""
    encoding: bytes = b""
    """Content-Encoding in lower case, empty when there is none."""
    messages: bool = False
    """Whether its body is length-prefixed messages, each of which may be compressed: gRPC's."""
    events: bool = False
    """Whether its body is an event stream of AWS's."""
    message_encoding: bytes = b""
    """How its messages are compressed, in lower case."""
    unreadable: bool = False
    """Whether its charset is not ASCII-compatible, so that it cannot be searched."""
    upgrade: bytes = b""
    """The protocol that a 101 switches to, in lower case."""
    websocket_accept: bytes = b""
    websocket_protocol: bytes = b""
    websocket_extensions: bytes = b""
    collected: list[Field] = field(default_factory=list)
    """Fields about which the caller decides."""

    def copy(self) -> ResponseHead:
        """The head of another response that is the same."""
        other = copy(self)
        other.lines, other.collected = self.lines.copy(), self.collected.copy()
        return other


class Reply(Struct, frozen=True):
    """A whole response of the gateway's own."""

    status: int
    phrase: str
    lines: tuple[bytes, ...]
    """Fields, as `Name: value` and CRLF; not those that frame the message."""
    body: bytes

    @property
    def start(self) -> bytes:
        """The status line, CRLF included."""
        return f"HTTP/1.1 {self.status} {self.phrase}\r\n".encode("ascii")


def parse_response(
    head: bytes, method: str, known: Memo, treat: Treat | None = None
) -> ResponseHead:
    """Read the answer to a request; `head` ends before the empty line.

    `known` is a memo as of `RequestReader`, but not the same. Without `treat`, every field that is
    the client's goes on.
    """
    rows = iter(split_head(head))
    first = next(rows)
    usual = _USUAL.get(first)
    status, minor, start = _parse_status_line(first) if usual is None else usual
    lines: list[bytes] = []
    response = ResponseHead(status, minor, start, lines, not minor)
    read: dict[bytes, bytes] = {}
    for row in rows:
        line = known.get(row)
        if line is None:
            line = _take(row, known, read, response, treat)
            if line is None:
                continue
        if isinstance(line, tuple):
            name, line = line
            if name in read:
                if read[name] != line or name == _ENCODING:
                    raise Malformed(TWICE)
                continue  # the same value twice, as chained servers send it, counts once
            read[name] = line
        lines.append(line)
    connection = read.get(b"connection")
    if connection is not None:
        if connection.lower() == b"keep-alive":
            response.close = False
        else:
            _connect(response, parse_tokens(connection), read)
    _frame(response, read, method)
    return response


def _parse_status_line(row: bytes) -> tuple[int, int, bytes]:
    found = _STATUS_LINE.fullmatch(row)
    if found is None:
        raise Malformed("the status line is not `HTTP/1.1 CODE reason`")
    minor, status, reason = found.groups(b"")
    start = b"HTTP/1.1 %b %b\r\n" % (status, reason)
    return int(status), int(minor), start


_USUAL = {
    row: _parse_status_line(row)
    for row in (b"HTTP/1.1 200 OK", b"HTTP/1.1 201 Created", b"HTTP/1.1 304 Not Modified")
}
"""The status lines of nearly all responses."""


def _take(
    row: bytes,
    known: Memo,
    read: dict[bytes, bytes],
    response: ResponseHead,
    treat: Treat | None,
) -> bytes | tuple[bytes, bytes] | None:
    """Read a line that is not in the memo. Returns the line to pass on, if any."""
    sent, value = split_field(row)
    name = sent.lower()
    if name in _READ:
        if name not in read:
            read[name] = value
        elif name in _LISTS:
            read[name] += b"," + value
        else:
            # Two lengths that are equal today are two lengths for a reader of only one.
            raise Malformed(TWICE)
        return None
    check_name(sent)
    if name in NOT_FOR_THE_CLIENT:
        return None
    written = b"%b: %b\r\n" % (sent, value)
    treatment = Treatment.KEEP if treat is None else treat(name)
    if treatment is not Treatment.KEEP:
        if treatment is Treatment.COLLECT:
            _collect(response, Field(name, value, written))
        return None
    once = name in ONCE_IN_RESPONSES or name in _MESSAGE_ENCODINGS
    line = (name, written) if once else written
    if name == _ENCODING:
        _note_encoding(response, value.lower())
    elif name in _MESSAGE_ENCODINGS:
        other, named = response.message_encoding, value.lower()
        response.message_encoding = named if other in (b"", named) else _SEVERAL
    elif name == b"content-type" and _note_type(response, value):
        pass  # a line from the memo is not looked at again
    elif name != b"set-cookie":
        # A cookie may be a credential of the user's; it is not kept longer than needed.
        remember(known, row, line)
    return line


def _collect(response: ResponseHead, collected: Field) -> None:
    """Keep a field for the caller; the same value twice counts once."""
    if collected.name in ONCE_IN_RESPONSES:
        for other in response.collected:
            if other.name == collected.name:
                if other.value != collected.value:
                    raise Malformed(TWICE)
                return
    response.collected.append(collected)


def is_unreadable(content_type: bytes) -> bool:
    """Whether a Content-Type names a charset in which ASCII cannot be searched for."""
    plain = content_type.lower().translate(None, _AROUND_A_CHARSET)
    return _UNREADABLE.search(plain) is not None


def _note_type(response: ResponseHead, media: bytes) -> bool:
    """Note how a Content-Type says that the body must be read. Returns whether it says
    something."""
    plain = media.lower()
    response.messages = plain.startswith(_MESSAGES)
    response.events = plain.startswith(_EVENTS)
    response.unreadable = is_unreadable(media) or plain.startswith(_IN_BASE64)
    return response.unreadable or response.messages or response.events


def _note_encoding(response: ResponseHead, value: bytes) -> None:
    if value == b"x-gzip":
        value = b"gzip"  # RFC 9110 §8.4.1.3: "equivalent".
    if value not in {b"", b"identity"}:
        response.encoding = value


def _frame(response: ResponseHead, read: dict[bytes, bytes], method: str) -> None:
    """Determine where the body ends (RFC 9112 §6.3)."""
    coding = read.get(b"transfer-encoding")
    length = read.get(b"content-length")
    if coding is not None:
        check_chunked(coding, length is not None, response.minor == 0)
    size = NO_LENGTH if length is None else parse_length(length)
    status = response.status
    if status < 200 or status == _NO_CONTENT:
        # "MUST NOT" announce a body (RFC 9110 §8.6, 9112 §6.1); if one comes, it must not be taken
        # for the next response.
        response.close = response.close or size > 0 or coding is not None
    elif status == _NOT_MODIFIED or method == "HEAD":
        response.length = size
    elif coding is not None:
        response.framing = _CHUNKED
    elif length is not None:
        response.framing, response.length = _LENGTH, size
    else:
        response.framing, response.close = _UNTIL_CLOSED, True


def _connect(response: ResponseHead, options: set[bytes], read: dict[bytes, bytes]) -> None:
    """Apply Connection, and drop the fields that it nominates (RFC 9110 §7.6.1)."""
    if b"close" in options:
        response.close = True
    elif b"keep-alive" in options:
        response.close = False
    if not options <= _OPTIONS:
        response.lines = without(response.lines, options)
        response.collected = [each for each in response.collected if each.name not in options]
    if response.status == _SWITCHING and b"upgrade" in options:
        response.upgrade = read.get(b"upgrade", b"").lower()
        response.websocket_accept = read.get(b"sec-websocket-accept", b"")
        response.websocket_protocol = read.get(b"sec-websocket-protocol", b"")
        response.websocket_extensions = read.get(b"sec-websocket-extensions", b"")
