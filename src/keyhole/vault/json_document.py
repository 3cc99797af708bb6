"""JSON documents of logins: a client's file, a server's answer. Their values are read one by one.

Used by everything that knows a form of login. Nothing here raises, since the characters of tokens
are in scope."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import TypeAlias

from keyhole.model.errors import Unparsable
from keyhole.model.https_url import HttpsUrl
from keyhole.vault.secret_lifetime import MAX_LIFE

Document: TypeAlias = dict[str, object]
"""A JSON object: a login file, or an answer of a token endpoint."""

MAX_TOKEN = 16 * 1024
"""Characters of a token: those with claims have about 2,000, and servers accept heads of 16 KiB."""

_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{MAX_TOKEN}}}")
_LAST_SECOND = 1 << 37
"""The latest date that is accepted: the year 6325."""


def read_document(data: bytes) -> Document | None:
    """A JSON object, or None."""
    try:
        found = json.loads(data, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _finite(text: str) -> float | None:
    """Refuse infinity, which JSON does not have and which could not be read back."""
    found = float(text)
    return found if math.isfinite(found) else None


def write_document(document: Document) -> bytes:
    """The document in the clients' own form, readable in any locale."""
    return json.dumps(document, indent=2).encode("ascii") + b"\n"


def table(value: object) -> Document:
    """A nested object; an empty one if there is none."""
    return value if isinstance(value, dict) else {}


def token(value: object) -> str:
    """A token without characters that could end a header or a line; else an empty text."""
    return value if isinstance(value, str) and _TOKEN.fullmatch(value) else ""


def https_url(value: object) -> HttpsUrl | None:
    """An https address in its usual form, or None."""
    if not isinstance(value, str):
        return None
    try:
        return HttpsUrl.parse(value)
    except Unparsable:
        return None


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
    """The claims of a JSON Web Token. Not verified: used only to show the account."""
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except (binascii.Error, ValueError):
        return {}
    return read_document(body) or {}
