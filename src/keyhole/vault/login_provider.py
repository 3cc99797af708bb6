"""The interface of a client's login: its file, its tokens, and how they are renewed.

Implemented by `claude_login.py`, `codex_login.py` and `google_login.py`, used by `login_source.py`.
A file and a response are data: neither chooses where a token is sent. No code here or there raises,
since the characters are in scope."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from keyhole.model.redacted import redacted_repr
from keyhole.vault.secret_lifetime import MAX_LIFE

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from keyhole.policy.rulebook import Rulebook

Document: TypeAlias = dict[str, object]
"""A JSON object: a login file, or an answer of a token endpoint."""

ENDPOINT_PATIENCE = 60.0
"""Seconds for the whole answer of an endpoint. It is long because a token may be
spent although no answer came."""

MAX_TOKEN = 16 * 1024
"""Characters of a token: those with claims have about 2,000, and servers accept heads of 16 KiB."""

_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{MAX_TOKEN}}}")
_LAST_SECOND = 1 << 37
"""The latest date that is accepted: the year 6325."""


class LoginTokens(Struct, frozen=True, eq=False):
    """The tokens of a login file. The repr shows no character of them."""

    access: str
    """The secret for requests: one line, or a line for each part."""
    refresh: str = ""
    """Empty if the login cannot be renewed."""
    others: tuple[str, ...] = ()
    """Other characters that must not come back in a response."""
    expires: float | None = None
    """When the access token ends, in seconds since 1970; None when unknown."""

    def __repr__(self) -> str:
        return "Tokens(…)"


class LoginTokenRequest(Struct, frozen=True, eq=False):
    """One POST to the endpoint that renews a login."""

    host: str
    path: str
    kind: str
    """The body's content type."""
    body: bytes
    agent: str = "keyhole"

    __repr__ = redacted_repr("body")


class EndpointAccess(Struct, frozen=True):
    """How token endpoints are reached under a policy; both values are made when they are needed."""

    book: Callable[[], Rulebook]
    """The rules for `upstream.connect`, `upstream.proxy`, `upstream.private` and addresses."""
    context: Callable[[], ssl.SSLContext]
    """This host's roots, and those of `upstream.ca_file`."""
    patience: float = ENDPOINT_PATIENCE


class LoginProvider(Protocol):
    """One provider of logins."""

    again: str
    """The command by which a person logs in again."""

    def place(self, home: Path, env: Mapping[str, str]) -> Path:
        """The path at which the provider's own client keeps its login on this host."""

    def locks(self, directory: Path) -> tuple[Path, ...]:
        """Directories that the client makes while it renews; none: it has no lock."""

    def tokens(self, document: Document) -> LoginTokens | str:
        """The file's tokens, or the reason why it is no login."""

    def request(self, document: Document, tokens: LoginTokens) -> LoginTokenRequest:
        """The request for new tokens."""

    def renewed(self, document: Document, answer: Document, now: float) -> Document | None:
        """The file with the endpoint's tokens, otherwise unchanged; None if the answer has no
        token."""


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
