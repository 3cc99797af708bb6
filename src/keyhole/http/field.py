"""One header field of an inspected message, and the limits that heads have (RFC 9110 §5, 9112 §5).

Called by `request.py`, `response.py` and `body.py`. Nothing is repaired: a message that two servers
could read in two ways is refused, since smuggling depends on that difference (I4).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_HEAD = 64 * 1024
"""Bytes of a head: four times what common servers accept."""

MAX_FIELDS = 128
"""Fields of a head; browsers send about 20, common servers accept 100."""

_MAX_ROWS = MAX_FIELDS + 1

MAX_LINE = 16 * 1024
"""Bytes of one line: a full jar of cookies; common servers accept 8 KiB."""

MAX_KNOWN = 256
"""Lines in a memo of lines that were read before: those of some ten clients."""

MAX_KNOWN_LINE = 256
"""Bytes of a line in a memo: with MAX_KNOWN, at most about 200 KiB for one host of one session."""

MAX_LENGTH_DIGITS = 15
"""Digits of a Content-Length: a petabyte, which overflows no server's integer."""

END_OF_HEAD = b"\r\n\r\n"
END_SIZE = len(END_OF_HEAD)

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
"""Fields that are not lists (RFC 9110 §5.3), and some lists that servers read as if they were not:
of two lines, one server takes the first and another the last."""

ONCE_IN_RESPONSES = _ONCE | frozenset(b"etag last-modified location".split())
"""The same for a response. Fields that do not concern its body may be repeated: chained servers
send Date and Server twice."""

TWICE = "a field that may stand once stands twice"

Memo = dict[bytes, "bytes | tuple[bytes, bytes]"]
"""From a received line to the line that is passed on; with its name, if it may occur only once."""

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


class Field(NamedTuple):
    """One field: lower-case name, trimmed value, and the line that is passed on, CRLF included."""

    name: bytes
    value: bytes
    line: bytes


def split_field(line: bytes) -> tuple[bytes, bytes]:
    """The text before the colon, and the trimmed value. The name is not checked yet."""
    name, colon, value = line.partition(b":")
    # Printable text has no control characters, which is quickly tested. Otherwise a bare CR, LF or
    # NUL is left after the permitted bytes were removed.
    if not colon or (not str(value, "latin-1").isprintable() and value.translate(None, _TEXT)):
        raise Malformed(NO_FIELD)
    return name, value.strip(b" \t")


def check_name(name: bytes) -> None:
    """Refuse an invalid field name: a folded line, a space before the colon."""
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
    """The end of the head at the start of `data`; -1 while it is not complete.

    `searched` is the number of bytes that an earlier call has seen. The head is `data[:end]`, and
    the bytes after it start at `end + len(END_OF_HEAD)`.
    """
    start = searched - 3 if searched > 3 else 0
    end = data.find(END_OF_HEAD, start)
    if 0 <= end <= MAX_HEAD:
        return end
    if end > 0 or len(data) > MAX_HEAD:
        raise Malformed(f"a head has at most {MAX_HEAD} bytes")
    if _BARE_END.search(data, start):
        # Without this, a head of bare LF would be waited for and never refused.
        raise Malformed("a line ends with a bare LF")
    return end


def split_head(head: bytes) -> list[bytes]:
    """The lines of a head that ends before the empty line; their content is not checked."""
    if len(head) > MAX_HEAD:
        raise Malformed(f"a head has at most {MAX_HEAD} bytes")
    rows = head.split(b"\r\n")
    if len(rows) > _MAX_ROWS:
        raise Malformed(f"a head has at most {MAX_FIELDS} fields")
    if len(head) > MAX_LINE and max(map(len, rows)) > MAX_LINE:
        raise Malformed(f"a line of a head has at most {MAX_LINE} bytes")
    return rows


def parse_length(value: bytes) -> int:
    """Read the value of Content-Length."""
    # `int` alone would accept b"+5", b"5_0" and b" 5"; b"5, 5" is two lengths, b"010" may be 8.
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
    """The lines of all other fields."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]


def folded(name: bytes) -> bytes:
    """The name as seen by an origin that turns names into variables (RFC 3875 §4.1.18).

    `X_Api_Key` and `X-Api-Key` are one variable there, so a name that is removed in one spelling
    must not pass in the other.
    """
    return _NOT_PLAIN.sub(b"-", name)


def overrides_method(name: bytes) -> bool:
    """Whether a field of this folded name, as `X-HTTP-Method-Override`, names another method.

    If it were removed, the request would change; if it were passed, a request that was judged as a
    POST would be served as a DELETE.
    """
    if name in _METHOD_NAMES:
        return True
    words = name.split(b"-")
    return not (_METHOD_WORDS.isdisjoint(words) or _OVERRIDING.isdisjoint(words))


def remember(known: dict[K, T], raw: K, meaning: T) -> None:
    """Remember the meaning of a line or a name; a full memo is emptied first."""
    if len(raw) <= MAX_KNOWN_LINE:
        if len(known) >= MAX_KNOWN:
            # Lines that are never repeated (ids, dates) would fill it once and for all.
            known.clear()
        known[raw] = meaning
