"""How a secret may be written when an upstream echoes it: as it is, encoded, escaped.

Used by `scrub.py`, which searches for these. Each rendering comes with a stand-in of the same
length, and with the part of it that is searched for.

How long a search takes depends on what is searched for, and who chooses the text can measure it:
256 KiB of one repeated character take between 13 and 94 µs, by which of a token's it is, and those
of a repeated part of the token up to a millisecond. So a search never uses the last characters of a
secret: they are compared in constant time once all before them were found.
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
"""Characters from which on a secret is searched for; shorter ones are found where none is."""

UNSEARCHED = 16
"""Characters at the end of a secret that no search uses: 64 bits of a key in hex, 95 of a token in
letters and digits, for which there is no other way than to try them at the service."""

MIN_SHARED = 8
"""Characters of a stretch that is searched for in the place of several spellings: shorter ones are
found where no secret is. So a key with 67 spellings needs 45 stretches."""

LAST_LATIN_1 = "\xff"
"""The last character that a header can carry as it is (RFC 9110 §5.5, obs-text)."""

_BASE64_SKIPPED = (0, 2, 3)
"""Characters of base64 that bytes before the secret have a part in, by their number modulo 3."""


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
    """Of what is no secret but belongs to one, as an access key's id: the plain text alone."""
    if len(name) < MIN_SCRUBBED:
        return ()
    text = name.encode()
    return (Rendering(text, fitted(placeholder, len(name)).encode(), text),)


def rendered_base64(
    before: str, secret: str, placeholder: str
) -> tuple[str, tuple[Rendering, ...], str]:
    """Base64 of a secret with something before it, as Basic wants it, and how to find it again.

    The last is what a search may know of that text.
    """
    text = base64.b64encode((before + secret).encode())
    if len(secret) < MIN_SCRUBBED:
        return text.decode("ascii"), (), ""
    stand = base64.b64encode((before + fitted(placeholder, len(secret))).encode())
    searched = _base64(searchable(secret), len(before.encode()) % 3)
    # Its padding and its `+` and `/` are spelled as a secret's own characters are.
    found = _written(text.decode(), stand.decode(), searched)
    return text.decode("ascii"), tuple(found.values()), searched


def _written(whole: str, stand: str, searched: str) -> dict[bytes, Rendering]:
    """A text in every spelling, by its needle; most of them are found by one search."""
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
    """What a search may know of a secret."""
    return secret[: max(len(secret) - UNSEARCHED, len(secret) // 2)]


def fitted(placeholder: str, length: int) -> str:
    """The placeholder, cut or repeated."""
    text = placeholder or MARKS[0]
    return (text * (length // len(text) + 1))[:length]


def _stand_in(rendered: bytes, needle: bytes) -> bytes:
    """The placeholder in the same rendering; cut or repeated, where that has another length."""
    return (rendered * (len(needle) // len(rendered) + 1))[: len(needle)]


# ── spellings: most characters stay as they are ───────────────────────────────────────────────────

_PLAIN = re.compile(r"[A-Za-z0-9._]+")
"""What every spelling leaves as it is."""
_DASHED = re.compile(r"[A-Za-z0-9._-]+")
"""And what all but one do."""

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
"""What is left as it is: nothing, by Python's `quote`, by `encodeURIComponent`, in a query by
RFC 3986, by `encodeURI`; by Go in a part of a path and in a path, in a part by RFC 3986."""
_DOUBLED = 2
"""How many of these are also escaped twice, as an address within an address is."""
_ESCAPE_SAFE = "@*+/"
"""What JavaScript's `escape` leaves as it is, beside letters, digits and `_-.`."""


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
    # In a header, characters beyond ASCII are a byte each; elsewhere they are two or more.
    narrow = "latin-1" if max(text) <= LAST_LATIN_1 else "utf-8"
    return [text.encode(), text.encode(narrow), *map(str.encode, escaped)]


def _javascript_escape(text: str) -> str:
    """By units of UTF-16: what is beyond Latin-1 becomes `%uXXXX`."""
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
    """RFC 2045 §6.7, but for its breaks of long lines."""
    return "".join(
        c if " " <= c <= "~" and c != "=" else "".join(f"={byte:02X}" for byte in c.encode())
        for c in text
    )


def _ascii(json_text: str) -> str:
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in json_text)


# ── encodings: every character becomes others ─────────────────────────────────────────────────────


def _in_base64(text: str) -> list[str]:
    """A text in base64, by what may be before it; of these, some characters are spelled again."""
    return [_base64(text, before, chars) for before in range(3) for chars in (None, b"-_")]


def _encoded(text: str) -> list[bytes]:
    """A text in every other encoding, always in this order."""
    data = text.encode()
    digits = data.hex()
    escaped = "".join(f"%{byte:02x}" for byte in data)
    return [t.encode() for t in (digits, digits.upper(), escaped, escaped.upper())]


def _base64(text: str, before: int, altchars: bytes | None = None) -> str:
    """The characters of base64 that this text alone decides, with so many bytes before it.

    At both ends there may be one more that holds some of its bits and some of a neighbour's.
    """
    data = bytes(before) + text.encode()
    text64 = base64.b64encode(data, altchars).decode("ascii")
    return text64[_BASE64_SKIPPED[before] : len(data) * 8 // 6]
