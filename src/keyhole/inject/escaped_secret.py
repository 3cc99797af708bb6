r"""A secret whose characters are escaped one by one, as JSON or HTML escapes them (I7).

Used by `scrub.py`. An encoder can be told to escape every character, or every one outside a list,
so `s` comes back as `s`, `\u0073`, `&#115;` or `&#x73;`, and each character in another way. No list
of texts holds all mixtures. So the gateway looks for the marks that every escape has, then for an
escape of one of six characters of the secret, and only then decodes and compares. The first two
steps search for plain texts: Vectorscan finds those reliably, and misses matches of patterns like
the one in the last step.

As in `renderings.py`, no search uses the last characters of the secret: they are decoded in every
case, and compared in constant time.
"""

from __future__ import annotations

import re
from functools import cache
from hmac import compare_digest
from typing import NamedTuple, NoReturn

MAX_BACKSLASHES = 4
"""Backslashes of one escape: of JSON in a string of JSON in a string of JSON."""

MAX_ZEROS = 4
"""Zeros before the number of a character in HTML; `&#x0073;` has two."""

MAX_ESCAPE = len("&amp;#0000115;")
"""Bytes of the longest escape of one character."""

MARKS = (b"\\u00", b"&amp;#", *(b"&#" + bytes([digit]) for digit in b"013456789xX"))
"""One of them is in every text that has such an escape, and hardly one in a text that has none."""

ANCHOR = 16
"""Characters by which the secret is found: the last ones that a search may use. An attacker knows
how a token begins, dozens of characters for a JSON Web Token, and could repeat them to make each
copy cost a closer look (I12)."""

HINTS = 6
"""The number of those characters that give a hint: either one of them is escaped, or they are a
text of their own."""

_NAMES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}
_SHORT = '"/'
"""Characters that JSON also escapes with a backslash alone."""

# The first backslash by itself: `re` skips to where an alternative can begin, if it begins plainly.
_BACKSLASHES = rf"\x5c\x5c{{0,{MAX_BACKSLASHES - 1}}}"
_AMPERSAND = "&(?:amp;)?"
_ZEROS = f"0{{0,{MAX_ZEROS}}}"

# The codes of printable ASCII. `&#457` is `-` and a 7, not the character 457: without a semicolon
# the text alone is ambiguous, and the attacker may know which one the encoder means.
_CHARACTER = re.compile(
    rb"\\{1,%d}(?:u00([2-7][0-9A-Fa-f])|([\"/\\]))"
    rb"|&(?:amp;)?(?:#0{0,%d}(1[0-2][0-9]|[3-9][0-9]);?|#[xX]0{0,%d}([2-7][0-9A-Fa-f]);?"
    rb"|(amp|lt|gt|quot|apos);)"
    rb"|(.)" % (MAX_BACKSLASHES, MAX_ZEROS, MAX_ZEROS),
    re.DOTALL,
)
_NAMED = {name.encode(): ord(character) for character, name in _NAMES.items()}


_ESCAPE = re.compile(
    rb"(\\{1,%d}(?:u00[2-7][0-9A-Fa-f]|/)"
    rb"|&(?:amp;)?#(?:0{0,%d}(?:1[0-2][0-9]|[3-9][0-9])|[xX]0{0,%d}[2-7][0-9A-Fa-f]);?)"
    % (MAX_BACKSLASHES, MAX_ZEROS, MAX_ZEROS)
)
_SWALLOWED = len("x000073")
"""Plain characters that may belong to an escape that begins before them, as in `&#` and `x000073`:
`unescaped` may take as many from the beginning of a text."""

_MIN_INNER = 4
_AMBIGUOUS = frozenset("\\&#;<>\"'")
"""Characters that escapes are written with, or that have a name."""


class EscapedMatch(NamedTuple):
    """The position of the secret, from its first escape or character to its last."""

    start: int
    end: int


class EscapedSecret:
    """One secret in ASCII, ready to be found in such a spelling. It cannot be printed."""

    __slots__ = ("_anchor", "_before", "_inner", "_pattern", "_rest", "hints", "reach")

    def __init__(self, text: str, searched: str) -> None:
        """`searched` is the beginning of the text, which a search may use."""
        self.hints = _hints(searched[-HINTS:])
        """Texts of which one is in every text that has the secret in escapes."""
        self._before = searched[:-ANCHOR]
        self._anchor = searched[-ANCHOR:]
        inner = self._anchor[_SWALLOWED:]
        clear = len(inner) >= _MIN_INNER and _AMBIGUOUS.isdisjoint(self._anchor)
        self._inner = inner.encode() if clear else b""
        self._pattern: re.Pattern[bytes] | None = None
        self._rest = text[len(searched) :].encode()
        self.reach = MAX_ESCAPE * len(text)
        """The most bytes that it has in escapes."""

    def __repr__(self) -> str:
        return "Spelled()"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret to search for cannot be pickled or copied")

    def may_be_in(self, plain: bytes) -> bool:
        """Whether it may be in the text of which `plain` is the unescaped form.

        So many secrets cost little more than a few: `find` takes 5 ms for each in 256 KiB.
        """
        return self._inner in plain

    def find(self, data: bytes) -> list[EscapedMatch]:
        """Every position of the secret, also where it is not escaped."""
        found: list[EscapedMatch] = []
        if self._pattern is None:
            self._pattern = escape_pattern(self._anchor)
        search = self._pattern.search
        match = search(data)
        while match is not None:
            end, rest = _decode(data, match.end(), len(self._rest))
            # With two backslashes, a search also finds it from the second one.
            if compare_digest(rest, self._rest) and not (found and found[-1].end == end):
                start = self._start(data, match.start())
                if start >= 0:
                    found.append(EscapedMatch(start, end))
            match = search(data, match.start() + 1)
        return found

    def _start(self, data: bytes, at: int) -> int:
        """The beginning of the secret, if the searchable part begins there; -1 if it does not."""
        for c in reversed(self._before):
            window = data[max(0, at - MAX_ESCAPE) : at]
            match = _last(c).search(window)
            if match is None:
                return -1
            at -= len(window) - match.start()
        return at


def unescape(data: bytes) -> bytes:
    """A text with every escape replaced by its character, except those that have a name."""
    parts = _ESCAPE.split(data)
    parts[1::2] = map(_CHARACTERS.__getitem__, parts[1::2])
    return b"".join(parts)


class _Characters(dict[bytes, bytes]):
    """From an escape to its character. There are some thousand escapes, each decoded once."""

    def __missing__(self, escape: bytes) -> bytes:
        character = self[escape] = _decode(escape, 0, 1)[1]
        return character


_CHARACTERS = _Characters()


def _decode(data: bytes, at: int, count: int) -> tuple[int, bytes]:
    """This many characters from there on, and the end."""
    characters = bytearray()
    for _ in range(count):
        match = _CHARACTER.match(data, at)
        if match is None:
            break
        at = match.end()
        in_json, short, decimal, in_hex, name, plain = match.groups()
        if plain or short:
            characters += plain or short
        elif name:
            characters.append(_NAMED[name])
        else:
            characters.append(int(decimal) if decimal else int(in_json or in_hex, 16))
    return at, bytes(characters)


def escape_pattern(text: str, end: str = "") -> re.Pattern[bytes]:
    """A text with each of its characters in every spelling."""
    return re.compile(("".join(map(_spellings, text)) + end).encode())


@cache
def _last(c: str) -> re.Pattern[bytes]:
    """One character in every spelling, at the end of a text."""
    return escape_pattern(c, r"\Z")


def _spellings(c: str) -> str:
    """One character in every spelling, for `re`; linear, since no two alternatives begin alike."""
    ways = [
        f"{_BACKSLASHES}u00{_digits(c)}",
        f"{_AMPERSAND}#(?:{_ZEROS}{ord(c)}|[xX]{_ZEROS}{_digits(c)});?",
    ]
    if c in _NAMES:
        ways.append(f"{_AMPERSAND}{_NAMES[c]};")
    if c in _SHORT:
        ways.append(f"{_BACKSLASHES}{c}")
    ways.append(_BACKSLASHES if c == "\\" else _literally(c))
    return f"(?:{'|'.join(ways)})"


def _hints(anchor: str) -> tuple[bytes, ...]:
    """The text itself, and every way in which the escape of one of its characters may end."""
    found = {anchor, "#0", "#x0", "#X0"}
    for c in anchor:
        for digits in (f"{ord(c):02x}", f"{ord(c):02X}"):
            found |= {f"u00{digits}", f"#x{digits}", f"#X{digits}"}
        found |= {f"#{ord(c)}", f"{_NAMES[c]};" if c in _NAMES else anchor}
        if c in "\\" + _SHORT:
            found.add(f"\\{c}")
    return tuple(sorted(text.encode() for text in found))


def _literally(c: str) -> str:
    return rf"\x{ord(c):02x}"


def _digits(c: str) -> str:
    """Its number in hexadecimal, in upper and lower case."""
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{ord(c):02x}")
