"""What a login is: whose file, which tokens are in it, and how new ones are asked for.

Implemented by `claudelogin.py`, `codexlogin.py` and `googlelogin.py`, used by `logins.py`. A file
and an answer are data: neither says where a token is sent. Nothing here, or there, raises: the
characters are at hand.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import TYPE_CHECKING, Protocol, TypeAlias

from keyhole.model.value import dataclass, field
from keyhole.vault.lives import MAX_LIFE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Document: TypeAlias = dict[str, object]
"""A JSON object: a login file, or an answer of a token endpoint."""

MAX_TOKEN = 16 * 1024
"""Characters of a token: those with claims have about 2,000, and servers take heads of 16 KiB."""

_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{MAX_TOKEN}}}")
_LAST_SECOND = 1 << 37
"""No date is later: the year 6325."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tokens:
    """What a login file holds. No character of it is in a repr."""

    access: str
    """As it is handed out: one line, or a line for each part."""
    refresh: str = ""
    """Empty where the login cannot be renewed."""
    others: tuple[str, ...] = ()
    """What else is worth stealing."""
    expires: float | None = None
    """When the access token ends, in seconds since 1970; None where that is not said."""

    def __repr__(self) -> str:
        return "Tokens(…)"


@dataclass(frozen=True, slots=True, eq=False)
class TokenRequest:
    """One POST to the endpoint that renews a login."""

    host: str
    path: str
    kind: str
    """The body's content type."""
    body: bytes = field(repr=False)
    agent: str = "keyhole"


class Provider(Protocol):
    """Whose login it is."""

    again: str
    """What a person types to log in anew."""

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """Where the provider's own client keeps its login on this host."""

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """Directories that the client makes while it renews; none: it has no lock."""

    def tokens(self, document: Document) -> Tokens | str:
        """What the file holds, or why it is no login."""

    def request(self, document: Document, tokens: Tokens) -> TokenRequest:
        """How new tokens are asked for."""

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with what the endpoint gave, all else as it was; None: it gave no token."""


def read_document(data: bytes) -> Document | None:
    """A JSON object, or None."""
    try:
        found = json.loads(data, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _finite(text: str) -> float | None:
    """JSON has no infinity, and would not be read back."""
    found = float(text)
    return found if math.isfinite(found) else None


def write_document(document: Document) -> bytes:
    """As the clients write it, and as they can read it whatever their locale."""
    return json.dumps(document, indent=2).encode("ascii") + b"\n"


def table(value: object) -> Document:
    """An object in an object; an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def token(value: object) -> str:
    """A token, without anything that could end a header or a line; else nothing."""
    return value if isinstance(value, str) and _TOKEN.fullmatch(value) else ""


def moment(value: object, unit: float = 1.0) -> float | None:
    """Seconds since 1970 of a number in this unit."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Compared before it is divided: an integer may be larger than any float.
    return value * unit if 0 < value < _LAST_SECOND / unit else None


def lifetime(value: object) -> float | None:
    """`expires_in` of an answer (RFC 6749 §5.1), in seconds."""
    found = moment(value)
    return found if found is not None and found <= MAX_LIFE else None


def claims(text: str) -> Document:
    """What a JSON Web Token says of itself. It is not verified: only its owner is told by it."""
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except (binascii.Error, ValueError):
        return {}
    return read_document(body) or {}
