"""The shape of a token, and placeholders of that shape.

Clients check a token's prefix, length and alphabet before they send it, so a placeholder has them
too. It carries a mark that no real token has, authorises nothing, and is made for each sandbox from
random bytes that the caller passes.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Unparsable

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOWER = "abcdefghijklmnopqrstuvwxyz"
_UPPER = _LOWER.upper()
_DIGITS = "0123456789"

ALPHABETS = {
    "alnum": _LOWER + _UPPER + _DIGITS,
    "lower": _LOWER + _DIGITS,
    "upper": _UPPER + _DIGITS,
    "base32": _UPPER + "234567",
    "b64u": _LOWER + _UPPER + _DIGITS + "_-",
    "b64": _LOWER + _UPPER + _DIGITS + "+/",
    "hex": _DIGITS + "abcdef",
    "digit": _DIGITS,
}
"""Alphabets that a shape may name."""

MARKS = ("keyhole", "KEYHOLE", "decafbad", "00000000")
"""The beginning of the longest random run: the first mark that the alphabet can write."""

MAX_TOKEN_LENGTH = 2048
"""Characters of a placeholder: the longest known token has about 700."""

_PART = re.compile(r"\{([a-z0-9]+)(?::([0-9]{1,4}))?\}")
_LITERAL = re.compile(r"[A-Za-z0-9._~+/=:-]*")
_JWT = "jwt"
_FAR_FUTURE = 4102444800
"""2100-01-01: a client that reads `exp` must not try to refresh."""


class _Part(Struct, frozen=True):
    literal: str = ""
    alphabet: str = ""
    count: int = 0


class TokenShape(Struct, frozen=True):
    """A token's shape, as in `sk-ant-api03-{b64u:93}AA`."""

    text: str
    parts: tuple[_Part, ...]

    @classmethod
    def parse(cls, text: str) -> TokenShape:
        """Read literals and `{alphabet:count}` runs; `{jwt}` is an unsigned JSON Web Token."""
        parts: list[_Part] = []
        at = 0
        for found in _PART.finditer(text):
            parts.append(_literal(text[at : found.start()]))
            parts.append(_run(found[1], found[2]))
            at = found.end()
        parts.append(_literal(text[at:]))
        shape = cls(text, tuple(p for p in parts if p != _Part()))
        if not any(p.alphabet == _JWT or _can_mark(p) for p in shape.parts):
            raise Unparsable("a shape has a run of at least 16 characters to tell it from a token")
        if sum(len(p.literal) + p.count for p in shape.parts) > MAX_TOKEN_LENGTH:
            raise Unparsable(f"a token has at most {MAX_TOKEN_LENGTH} characters")
        return shape

    def pattern(self) -> re.Pattern[str]:
        """The pattern that tokens of this shape match."""
        return re.compile("".join(_pattern(p) for p in self.parts))

    def placeholder(self, noise: bytes) -> str:
        """A placeholder of this shape from random bytes; marked so that nobody takes it for a real
        token."""
        longest = max((p for p in self.parts if _can_mark(p)), key=lambda p: p.count, default=None)
        texts, pool = [], _Pool(noise)
        for part in self.parts:
            text = part.literal
            if part.alphabet == _JWT:
                text = _stand_in_jwt(pool)
            elif part.alphabet:
                text = pool.draw(ALPHABETS[part.alphabet], part.count)
                if part is longest:
                    mark = mark_for(part.alphabet)
                    text = mark + text[len(mark) :]
            texts.append(text)
        return "".join(texts)


def mark_for(alphabet: str) -> str:
    """The mark that this alphabet can write."""
    return next(m for m in MARKS if set(m) <= set(ALPHABETS[alphabet]))


_MIN_MARKED_RUN = 16


def _can_mark(part: _Part) -> bool:
    return part.count >= _MIN_MARKED_RUN


def _literal(text: str) -> _Part:
    if not _LITERAL.fullmatch(text):
        raise Unparsable(
            "a shape is letters, digits, ._~+/=:- and runs such as {alnum:36}", "ghp_{alnum:36}"
        )
    return _Part(literal=text)


def _run(alphabet: str, count: str | None) -> _Part:
    if alphabet == _JWT and count is None:
        return _Part(alphabet=_JWT)
    if alphabet not in ALPHABETS or count is None or int(count) == 0:
        known = ", ".join(ALPHABETS)
        raise Unparsable(f"a run is {{alphabet:count}} with one of {known}", "{alnum:36}")
    return _Part(alphabet=alphabet, count=int(count))


def _pattern(part: _Part) -> str:
    if part.alphabet == _JWT:
        return r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+"
    if part.alphabet:
        return f"[{re.escape(ALPHABETS[part.alphabet])}]{{{part.count}}}"
    return re.escape(part.literal)


class _Pool:
    """Draws characters from the caller's random bytes, two bytes each against bias."""

    def __init__(self, noise: bytes) -> None:
        self._noise = noise
        self._at = 0

    def draw(self, alphabet: str, count: int) -> str:
        need = 2 * count
        taken = self._noise[self._at : self._at + need]
        if len(taken) < need:
            raise ValueError(
                f"a placeholder of this shape needs more than {len(self._noise)} bytes"
            )
        self._at += need
        pairs = (int.from_bytes(taken[i : i + 2], "big") for i in range(0, need, 2))
        return "".join(alphabet[n % len(alphabet)] for n in pairs)


def _stand_in_jwt(pool: _Pool) -> str:
    subject = "keyhole-" + pool.draw(ALPHABETS["alnum"], 24)
    header = {"alg": "none", "typ": "JWT"}
    claims = {"sub": subject, "exp": _FAR_FUTURE}
    return ".".join((_encode(header), _encode(claims), pool.draw(ALPHABETS["b64u"], 43)))


def _encode(value: Mapping[str, object]) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode("ascii")
