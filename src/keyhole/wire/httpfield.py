"""One header field of an inspected message, and the limits that heads have (RFC 9110 §5, 9112 §5).

Called by `httprequest.py`, `httpresponse.py` and `httpbody.py`. Nothing is repaired: what two
servers could read in two ways is refused, since that difference is what smuggling is made of (I4).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD = 64 * 1024
"""Bytes of a head: four times what common servers accept."""

MAX_FIELDS = 128
"""Fields of a head; browsers send about 20, common servers accept 100."""

MAX_LINE = 16 * 1024
"""Bytes of one line: a full jar of cookies; common servers accept 8 KiB."""

MAX_KNOWN = 256
"""Lines in a memo of lines that were read before: those of some ten clients."""

MAX_KNOWN_LINE = 256
"""Bytes of a line in a memo: with MAX_KNOWN, at most about 200 KiB for one host of one session."""

MAX_LENGTH_DIGITS = 15
"""Digits of a Content-Length: a petabyte, and no integer of anyone overflows."""

END_OF_HEAD = b"\r\n\r\n"

HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer"
    b" transfer-encoding upgrade http2-settings".split()
)
"""Fields of one connection, not of the message (RFC 9110 §7.6.1 and older habits)."""

_ONCE = frozenset(
    b"content-disposition content-encoding content-location content-md5 content-range"
    b" content-type".split()
)
ONCE_IN_REQUESTS = _ONCE | frozenset(
    b"access-control-request-method authorization date from if-match if-modified-since"
    b" if-none-match if-range if-unmodified-since max-forwards origin range referer"
    b" sec-websocket-key sec-websocket-version user-agent".split()
)
"""Fields that are no lists (RFC 9110 §5.3), and some lists that servers read as if they were none:
of two lines, one server takes the first and another the last."""

ONCE_IN_RESPONSES = _ONCE | frozenset(b"etag last-modified location".split())
"""The same, of an answer. Not what tells a client nothing of its body: servers behind servers send
Date and Server twice."""

TWICE = "a field that may stand once stands twice"

Memo = dict[bytes, "bytes | tuple[bytes, bytes]"]
"""From a line as sent to the line that goes on; with its name, if it may stand once."""

# RFC 9110 §5.6.2 token; §5.5 values without CR, LF, NUL and the other controls but the tab.
TOKEN_CHARACTER = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_TOKEN = re.compile(TOKEN_CHARACTER + rb"+")
_TEXT = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_ZERO = ord("0")
_BARE_END = re.compile(rb"\n\r?\n")
_NOT_PLAIN = re.compile(rb"[^0-9a-z]")

_METHOD_WORDS = frozenset(b"method verb httpmethod methodoverride httpmethodoverride".split())
_OVERRIDING = frozenset(b"http override httpmethod methodoverride httpmethodoverride".split())
_METHOD_NAMES = frozenset({b"method", b"x-method", b"verb", b"x-verb"})

NO_FIELD = "a header field is not `name: value` on one line"

K = TypeVar("K", bytes, str)
T = TypeVar("T")


class Malformed(Exception):
    """A message that is refused. `why` says it in words and holds no byte of the message."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Field(NamedTuple):
    """One field: lower-case name, trimmed value, and the line that goes on, CRLF included."""

    name: bytes
    value: bytes
    line: bytes


def split_field(line: bytes) -> tuple[bytes, bytes]:
    """What stands before the colon, and the trimmed value. The name is still to be looked at."""
    name, colon, value = line.partition(b":")
    # What is printable has no control in it, which is soon known; else a bare CR or LF or NUL is
    # what is left when the text is taken away.
    if not colon or (not str(value, "latin-1").isprintable() and value.translate(None, _TEXT)):
        raise Malformed(NO_FIELD)
    return name, value.strip(b" \t")


def check_name(name: bytes) -> None:
    """Refuse what is no field's name: a folded line, a space before the colon."""
    if not _TOKEN.fullmatch(name):
        raise Malformed(NO_FIELD)


def parse_field(line: bytes) -> Field:
    """Read `name: value`, without the line's end."""
    name, value = split_field(line)
    check_name(name)
    return Field(name.lower(), value, b"%b: %b\r\n" % (name, value))


def values_of(lines: Iterable[bytes], name: bytes) -> list[bytes]:
    """The values of one field, among lines that were written here."""
    pairs = (line.partition(b":") for line in lines)
    return [value.strip() for sent, _, value in pairs if sent.lower() == name]


def find_end(data: bytes | bytearray, searched: int = 0) -> int:
    """Where the head at the start of `data` ends, or -1 while it has not.

    `searched` is how many bytes an earlier call has seen. The head is `data[:end]`, and what
    follows it starts at `end + len(END_OF_HEAD)`.
    """
    start = searched - 3 if searched > 3 else 0
    end = data.find(END_OF_HEAD, start)
    if end > MAX_HEAD or (end < 0 and len(data) > MAX_HEAD):
        raise Malformed(f"a head has at most {MAX_HEAD} bytes")
    if end < 0 and _BARE_END.search(data, start):
        # Without this, a head of bare LF would be waited for and never be refused.
        raise Malformed("a line ends with a bare LF")
    return end


def split_head(head: bytes) -> list[bytes]:
    """The lines of a head that ends before the empty line; what is in them is not looked at."""
    if len(head) > MAX_HEAD:
        raise Malformed(f"a head has at most {MAX_HEAD} bytes")
    rows = head.split(b"\r\n")
    if len(rows) > MAX_FIELDS + 1:
        raise Malformed(f"a head has at most {MAX_FIELDS} fields")
    if len(head) > MAX_LINE and max(map(len, rows)) > MAX_LINE:
        raise Malformed(f"a line of a head has at most {MAX_LINE} bytes")
    return rows


def parse_length(value: bytes) -> int:
    """Read the value of Content-Length."""
    # `int` alone would take b"+5", b"5_0" and b" 5"; b"5, 5" is two lengths, b"010" may be 8.
    if (
        not value.isdigit()
        or len(value) > MAX_LENGTH_DIGITS
        or (value[0] == _ZERO and len(value) > 1)
    ):
        raise Malformed("Content-Length is not one plain number")
    return int(value)


def check_chunked(value: bytes, has_length: bool, http10: bool) -> None:
    """Refuse every Transfer-Encoding but a sole `chunked`."""
    if has_length:
        # RFC 9112 §6.3: both "might indicate an attempt to perform request smuggling".
        raise Malformed("a body has either Content-Length or Transfer-Encoding")
    if http10:
        # RFC 9112 §6.1: such a message is to be treated "as if the framing is faulty".
        raise Malformed("HTTP/1.0 has no Transfer-Encoding")
    if value.lower() != b"chunked":
        raise Malformed("Transfer-Encoding is something else than `chunked`")


def parse_tokens(value: bytes) -> set[bytes]:
    """Read a comma-separated list of tokens, in lower case (RFC 9110 §5.6.1)."""
    tokens = {token.strip(b" \t") for token in value.lower().split(b",")}
    tokens.discard(b"")
    if not all(map(_TOKEN.fullmatch, tokens)):
        raise Malformed("Connection is not a list of names")
    return tokens


def without(lines: list[bytes], names: set[bytes]) -> list[bytes]:
    """The lines whose field is not named."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def folded(name: bytes) -> bytes:
    """A name as an origin sees it that turns names into variables (RFC 3875 §4.1.18).

    `X_Api_Key` and `X-Api-Key` are one variable there, so what is removed as one must not pass as
    the other.
    """
    return _NOT_PLAIN.sub(b"-", name)


def overrides_method(name: bytes) -> bool:
    """Whether a field of this folded name, as `X-HTTP-Method-Override`, names another method.

    Removed, it would change what was asked; passed, what was judged as a POST is served as a
    DELETE.
    """
    if name in _METHOD_NAMES:
        return True
    words = name.split(b"-")
    return not (_METHOD_WORDS.isdisjoint(words) or _OVERRIDING.isdisjoint(words))


def remember(known: dict[K, T], raw: K, meaning: T) -> None:
    """Keep in a memo what a line or a name means; a full memo starts anew."""
    if len(raw) <= MAX_KNOWN_LINE:
        if len(known) >= MAX_KNOWN:
            # Lines that are never repeated (ids, dates) would fill it once and for all.
            known.clear()
        known[raw] = meaning
