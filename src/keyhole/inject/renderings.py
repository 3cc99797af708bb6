"""The forms in which an upstream may echo a secret: plain, encoded, escaped.

Used by `scrub.py`, which searches for these. Each rendering comes with a placeholder of the same
length, and with the part of it that is searched for.

The duration of a search depends on the needle, and an attacker who chooses the text can measure it:
256 KiB of one repeated character take between 13 and 94 µs, depending on the character, and 256 KiB
of a repeated part of the token take up to a millisecond. So a search never uses the last characters
of a secret: they are compared in constant time after all characters before them were found.
"""

from __future__ import annotations

import base64
import html
import json
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, quote_plus

from keyhole.inject.placeholder import MARKS

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_SCRUBBED = 16
"""Characters that a secret must have to be searched for; a shorter text would be found by
chance."""

UNSEARCHED = 16
"""Characters at the end of a secret that no search uses: 64 bits of a key in hex, 95 of a token in
letters and digits. An attacker can only try them at the service."""

MIN_SHARED = 8
"""Characters of a part that is searched for in place of several spellings; a shorter one would be
found by chance. So a key with 67 spellings needs 45 parts."""

LAST_LATIN_1 = "\xff"
"""The last character that a header can carry as it is (RFC 9110 §5.5, obs-text)."""

_BASE64_SKIPPED = (0, 2, 3)
"""Characters of base64 that depend on bytes before the secret, by the number of those modulo 3."""


class Rendering(NamedTuple):
    """One way in which a secret is written."""

    needle: bytes
    stand_in: bytes
    probe: bytes
    """The part of the needle that is searched for."""


def renderings(secret: str, placeholder: str) -> tuple[Rendering, ...]:
    """The ways in which a secret may come back; none for a short one."""
    if len(secret) < MIN_SCRUBBED:
        return ()
    texts = secret, fitted(placeholder, len(secret)), searchable(secret)
    found = _written(*texts)
    for whole, stand, searched in zip(*map(_in_base64, texts), strict=True):
        found |= _written(whole, stand, searched)
    for needle, other, begun in zip(*map(_encoded, texts), strict=True):
        found[needle] = Rendering(needle, _stand_in(other, needle), begun)
    return tuple(found.values())


def as_it_is(name: str, placeholder: str) -> tuple[Rendering, ...]:
    """The plain text alone, for a name that belongs to a secret, such as an access key's id."""
    if len(name) < MIN_SCRUBBED:
        return ()
    text = name.encode()
    return (Rendering(text, fitted(placeholder, len(name)).encode(), text),)


def rendered_base64(
    before: str, secret: str, placeholder: str
) -> tuple[str, tuple[Rendering, ...], str]:
    """Base64 of a secret with something before it, as Basic needs it, its renderings, and the
    searchable part of the text."""
    text = base64.b64encode((before + secret).encode())
    if len(secret) < MIN_SCRUBBED:
        return text.decode("ascii"), (), ""
    stand = base64.b64encode((before + fitted(placeholder, len(secret))).encode())
    searched = _base64(searchable(secret), len(before.encode()) % 3)
    # Its padding and its `+` and `/` are spelled like a secret's own characters.
    found = _written(text.decode(), stand.decode(), searched)
    return text.decode("ascii"), tuple(found.values()), searched


def _written(whole: str, stand: str, searched: str) -> dict[bytes, Rendering]:
    """The spellings of a text, by needle; one search finds most of them."""
    if _PLAIN.fullmatch(whole):
        needle = whole.encode()
        return {needle: Rendering(needle, _stand_in(stand.encode(), needle), searched.encode())}
    runs = (max(plain.findall(searched), key=len, default="") for plain in (_PLAIN, _DASHED))
    shared = [run.encode() for run in runs if len(run) >= MIN_SHARED]
    found: dict[bytes, Rendering] = {}
    for needle, other, begun in zip(*map(_spelled, (whole, stand, searched)), strict=True):
        probe = next((run for run in shared if run in begun), begun)
        found[needle] = Rendering(needle, _stand_in(other, needle), probe)
    return found


def searchable(secret: str) -> str:
    """The part of a secret that a search may use."""
    return secret[: max(len(secret) - UNSEARCHED, len(secret) // 2)]


def fitted(placeholder: str, length: int) -> str:
    """The placeholder, cut or repeated."""
    text = placeholder or MARKS[0]
    return (text * (length // len(text) + 1))[:length]


def _stand_in(rendered: bytes, needle: bytes) -> bytes:
    """The placeholder in the same rendering; cut or repeated if that has another length."""
    return (rendered * (len(needle) // len(rendered) + 1))[: len(needle)]


# ── spellings: most characters stay as they are ───────────────────────────────────────────────────

_PLAIN = re.compile(r"[A-Za-z0-9._]+")
"""Characters that every spelling leaves unchanged."""
_DASHED = re.compile(r"[A-Za-z0-9._-]+")
"""Characters that all spellings but one leave unchanged."""

_PERCENT_SAFE = (
    "",
    "/",
    "!'()*",
    "/?:@!$'()*,;",
    "/?:@!$'()*,;&=+#",
    "$&+:=@",
    "$&+,/:;=@",
    "!$&'()*+,;=:@",
)
"""Characters that stay unescaped: none; by Python's `quote`; by `encodeURIComponent`; in a query by
RFC 3986; by `encodeURI`; by Go in a path segment and in a path; in a segment by RFC 3986."""
_DOUBLED = 2
"""The number of these that are also escaped twice, as in an address within an address."""
_ESCAPE_SAFE = "@*+/"
"""Characters that JavaScript's `escape` leaves unchanged, beside letters, digits and `_-.`."""


def _units(characters: str, form: str) -> dict[str, str]:
    return {c: form.format(ord(c)) for c in characters}


_LOWER, _UPPER = "\\u{:04x}", "\\u{:04X}"
_JSON_SHORT = {'"': '\\"', "\\": "\\\\"}
_JSON: tuple[Mapping[str, str], ...] = (
    _JSON_SHORT,
    _JSON_SHORT | {"/": "\\/"},
    _JSON_SHORT | _units("<>&", _LOWER),  # Go
    _JSON_SHORT | _units("<>&='", _LOWER),  # Gson
    _JSON_SHORT | _units("\"&'+<>`", _UPPER),  # .NET
    _JSON_SHORT | {"/": "\\/"} | _units("<>&'\"", _UPPER),  # PHP, for use in HTML
    _units('"\\/', _LOWER),
    _units('"\\/', _UPPER),
    {"\\": "\\\\", "/": "\\/"} | _units("\"&'+<>`", _LOWER),  # Go, in a script
    _units("\\'\"<>&=-;`", _UPPER),  # Django's `escapejs`
)
_DECIMAL, _HEX, _HEX_LOWER = "&#{};", "&#x{:X};", "&#x{:x};"
_NAMED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
_HTML: tuple[Mapping[str, str], ...] = (
    _NAMED | _units("\"'", _DECIMAL),  # Go
    _NAMED | _units("\"'+", _DECIMAL),  # Go's templates
    _NAMED | _units("\"'+=` ", _DECIMAL),  # and where no quotes are around the text
    _NAMED | {"'": "&#39;"} | _units("/=`", _HEX),  # Mustache
    _NAMED | _units("'=`", _HEX),  # Handlebars
    _NAMED | _units("'+`", _HEX),  # .NET
    _NAMED | _units("'+/=`", _DECIMAL),
    _NAMED | _units("'+/=`", _HEX),
    _NAMED | _units("'+/=`", _HEX_LOWER),  # OWASP's encoders
)
_ESCAPE = re.compile(r"%(?:25)?[0-9A-F]{2}")


def _spelled(text: str) -> list[bytes]:
    """A text in every spelling, always in this order."""
    escaped = [quote(text, safe=safe) for safe in _PERCENT_SAFE]
    escaped += [once.replace("%", "%25") for once in escaped[:_DOUBLED]]
    # A form by Python, and by PHP, Java and browsers.
    escaped += (quote_plus(text), quote_plus(text, safe="*").replace("~", "%7E"))
    escaped += [_ESCAPE.sub(lambda found: found[0].lower(), upper) for upper in escaped]
    for table in _JSON:
        json_text = "".join(table.get(c, c) for c in text)
        escaped += (json_text, _ascii(json_text))
    escaped += (html.escape(text), html.escape(text, quote=False))
    escaped += ["".join(table.get(c, c) for c in text) for table in _HTML]
    escaped += (_javascript_escape(text), _quoted_printable(text))
    # In a header, characters beyond ASCII are one byte each; elsewhere they are two or more.
    narrow = "latin-1" if max(text) <= LAST_LATIN_1 else "utf-8"
    return [text.encode(), text.encode(narrow), *map(str.encode, escaped)]


def _javascript_escape(text: str) -> str:
    """By units of UTF-16: a unit beyond Latin-1 becomes `%uXXXX`."""
    return "".join(
        c
        if c in _ESCAPE_SAFE or _DASHED.fullmatch(c)
        else "".join(map(_javascript_unit, _utf16(c)))
        for c in text
    )


def _javascript_unit(unit: int) -> str:
    return f"%{unit:02X}" if unit <= ord(LAST_LATIN_1) else f"%u{unit:04X}"


def _utf16(c: str) -> tuple[int, ...]:
    data = c.encode("utf-16-be")
    return tuple(int.from_bytes(data[i : i + 2]) for i in range(0, len(data), 2))


def _quoted_printable(text: str) -> str:
    """RFC 2045 §6.7, without its breaks of long lines."""
    return "".join(
        c if " " <= c <= "~" and c != "=" else "".join(f"={byte:02X}" for byte in c.encode())
        for c in text
    )


def _ascii(json_text: str) -> str:
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in json_text)


# ── encodings: every character becomes others ─────────────────────────────────────────────────────


def _in_base64(text: str) -> list[str]:
    """A text in base64, for each number of bytes before it; some of the characters are spelled
    again."""
    return [_base64(text, before, chars) for before in range(3) for chars in (None, b"-_")]


def _encoded(text: str) -> list[bytes]:
    """A text in every other encoding, always in this order."""
    data = text.encode()
    digits = data.hex()
    escaped = "".join(f"%{byte:02x}" for byte in data)
    return [t.encode() for t in (digits, digits.upper(), escaped, escaped.upper())]


def _base64(text: str, before: int, altchars: bytes | None = None) -> str:
    """The characters of base64 that depend on this text alone, with so many bytes before it.

    At both ends one more character may hold some of its bits and some of a neighbour's.
    """
    data = bytes(before) + text.encode()
    text64 = base64.b64encode(data, altchars).decode("ascii")
    return text64[_BASE64_SKIPPED[before] : len(data) * 8 // 6]
