"""The head of a plain HTTP/1 request, read strictly (RFC 9112 §2–6, 11).

Called by `httpstream.py`. The bytes go on unchanged, so whatever the origin might read in another
way than we do is refused: that difference is what request smuggling is made of.
"""

from __future__ import annotations

import re

from keyhole.model.errors import Unparsable
from keyhole.model.host import Host
from keyhole.model.rule import request_word
from keyhole.model.value import dataclass
from keyhole.wire.httpfield import ONCE_IN_REQUESTS, TWICE

MAX_FIELDS = 128
"""Header fields of a request; browsers send about 20."""

HTTP_PORT = 80

# RFC 9110 §5.6.2 token; §5.5 field values without CR, LF, NUL and other controls.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*((?:[\x21-\x7e\x80-\xff][\x20-\x7e\x80-\xff\t]*)?)")
_LENGTH = re.compile(rb"[0-9]{1,15}")
_ABSOLUTE = re.compile(rb"[hH][tT][tT][pP]://([^/?#]+)([/?][^#]*)?")
_ORIGIN = re.compile(rb"/[^#]*")


@dataclass(frozen=True, slots=True)
class Head:
    """What is needed of a request: whom it is for, and how much body follows."""

    host: Host
    length: int = 0
    chunked: bool = False
    method: str = ""
    target: str = ""
    """As sent: a path and its query, or a whole address of this host, or `*`."""
    names: frozenset[bytes] = frozenset()
    """Its fields, in lower case."""

    @property
    def word(self) -> str:
        """How rules name it; empty where none can."""
        body = self.chunked or self.length > 0
        return request_word(self.method, body=body, websocket=False)

    @property
    def path(self) -> tuple[str, str]:
        """Path and query, whichever form the target has."""
        whole = _ABSOLUTE.fullmatch(self.target.encode("ascii"))
        text = (whole[2] or b"").decode("ascii") if whole else self.target
        path, _, query = text.partition("?")
        return path or "/", query


@dataclass(frozen=True, slots=True)
class BadHead:
    """A head that is refused: a stable reason code, and the words for a person."""

    reason: str
    why: str


def parse_head(data: bytes) -> Head | BadHead:
    """Read a head; `data` ends before the empty line."""
    line, *fields = data.split(b"\r\n")
    request = _REQUEST_LINE.fullmatch(line)
    if request is None:
        return _malformed("the request line is not `METHOD target HTTP/1.1`")
    if len(fields) > MAX_FIELDS:
        return _malformed(f"a request has at most {MAX_FIELDS} header fields")
    values: dict[bytes, list[bytes]] = {}
    for text in fields:
        # A bare CR or LF, a folded line, a space before the colon: none matches.
        found = _FIELD.fullmatch(text)
        if found is None:
            return _malformed("a header field is not `name: value` on one line")
        values.setdefault(found[1].lower(), []).append(found[2].rstrip(b" \t"))
    if request[1].upper() == b"CONNECT" or b"upgrade" in values:
        return BadHead("http-upgrade", "a connection cannot be turned into another protocol")
    if any(len(held) > 1 and name in ONCE_IN_REQUESTS for name, held in values.items()):
        return _malformed(TWICE)
    hosts = values.get(b"host", [])
    if len(hosts) != 1:
        return _malformed("exactly one Host is expected")
    host = _authority(hosts[0])
    if host is None or not _target_is_for(request[2], request[1], host):
        return _malformed("Host and target do not name one host")
    framed = _framed(host, values, request[3] == b"1")
    if isinstance(framed, BadHead):
        return framed
    method, target = request[1].decode("ascii"), request[2].decode("ascii")
    return Head(host, framed.length, framed.chunked, method, target, frozenset(values))


def _framed(host: Host, values: dict[bytes, list[bytes]], chunks_known: bool) -> Head | BadHead:
    lengths = values.get(b"content-length", [])
    codings = values.get(b"transfer-encoding", [])
    if codings:
        # RFC 9112 §6.3: both together "ought to be handled as an error".
        if lengths or len(codings) > 1 or codings[0].lower() != b"chunked" or not chunks_known:
            return _malformed("the body has no one length")
        return Head(host, chunked=True)
    if not lengths:
        return Head(host)
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        return _malformed("Content-Length is not one number")
    return Head(host, int(lengths[0]))


def _target_is_for(target: bytes, method: bytes, host: Host) -> bool:
    if target == b"*":
        return method == b"OPTIONS"
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        # RFC 9112 §3.2.2: an origin takes the authority from here and ignores Host.
        return _authority(absolute[1]) == host
    return _ORIGIN.fullmatch(target) is not None


def _authority(text: bytes) -> Host | None:
    name, colon, port = text.partition(b":")
    if colon and port != b"80":
        return None
    try:
        return Host.parse(name.decode("ascii"))
    except (Unparsable, UnicodeDecodeError):
        return None


def _malformed(why: str) -> BadHead:
    return BadHead("http-malformed", why)
