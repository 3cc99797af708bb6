"""The messages by which an app of GitHub gets a token: who it is, where it is installed, what the
token may do.

Pure: `github_app_source.py` sends them. The key only signs, and goes nowhere; the token is checked
against what was asked for, so that one which reaches further is not used. Imported when a token is
needed, since the cryptography library is slow to load.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from keyhole.model.redacted import redacted_repr
from keyhole.vault.json_document import Document, table, token

if TYPE_CHECKING:
    from keyhole.model.secret import Secret
    from keyhole.policy.github_app import AppGrant

CLOCK_SLACK = 60
"""Seconds by which a claim is dated back, as GitHub advises: clocks differ."""

CLAIM_SECONDS = 540
"""Seconds that a claim is good for; GitHub accepts ten minutes at most."""

MIN_KEY_BITS = 2048

_RANKS = {"read": 1, "write": 2, "admin": 3}


class AppToken(Struct, frozen=True, eq=False):
    """A token and its end, in seconds since 1970."""

    token: str
    expires: float

    __repr__ = redacted_repr("token")


def read_key(secret: Secret) -> RSAPrivateKey | None:
    """The app's key; None if it is none."""
    try:
        key = load_pem_private_key(secret.reveal().encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, RSAPrivateKey) and key.key_size >= MIN_KEY_BITS else None


def claim(key: RSAPrivateKey, app: str, now: float) -> str:
    """A signed claim to be the app: a JSON Web Token by RS256."""
    issued = int(now) - CLOCK_SLACK
    claims = {"iss": app, "iat": issued, "exp": issued + CLOCK_SLACK + CLAIM_SECONDS}
    signed = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
    signature = key.sign(signed.encode("ascii"), PKCS1v15(), SHA256())
    return f"{signed}.{_base64url(signature)}"


class Installation(Struct, frozen=True):
    """Where the app is installed, and what it may do there."""

    number: int
    permissions: tuple[tuple[str, str], ...]


def read_installation(document: Document) -> Installation | None:
    """The installation of an answer; None if there is none that is understood."""
    number = document.get("id")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1 << 63:
        return None
    found = table(document.get("permissions")).items()
    return Installation(
        number, tuple((token(name), level) for name, level in found if isinstance(level, str))
    )


def missing_permissions(grant: AppGrant, installation: Installation) -> tuple[str, ...]:
    """What the policy needs and the app does not have."""
    has = dict(installation.permissions)
    return tuple(
        f"{name}: {level}" for name, level in grant.needed if not _reaches(has, name, level)
    )


def token_request(grant: AppGrant, installation: Installation) -> bytes:
    """The request for a token of these repositories and permissions alone."""
    has = dict(installation.permissions)
    useful = [pair for pair in grant.useful if _reaches(has, *pair)]
    document = {
        "repositories": list(grant.repositories),
        "permissions": dict(grant.needed) | dict(useful),
    }
    return json.dumps(document).encode("ascii")


def read_app_token(document: Document, grant: AppGrant) -> AppToken | str:
    """The token of an answer, or why it is not used."""
    found = token(document.get("token"))
    try:
        expires = datetime.fromisoformat(str(document.get("expires_at"))).timestamp()
    except (ValueError, OverflowError, OSError):
        expires = 0.0
    if not found or not expires:
        return "the answer has no token in a form that is understood"
    asked = dict(grant.needed) | dict(grant.useful)
    given = table(document.get("permissions"))
    if not given or not all(_reaches(asked, name, level) for name, level in given.items()):
        return "the token may do more than was asked for"
    if document.get("repository_selection") != "selected":
        return "the token is for more repositories than were asked for"
    items = document.get("repositories")
    listed = items if isinstance(items, list) else []
    names = {str(table(each).get("full_name")).lower() for each in listed}
    wanted = {f"{grant.owner}/{name}".lower() for name in grant.repositories}
    if names != wanted:
        return "the token is for other repositories than were asked for"
    return AppToken(found, expires)


def _reaches(has: dict[str, object] | dict[str, str], name: str, level: object) -> bool:
    own = _RANKS.get(str(has.get(name)), 0)
    return own >= _RANKS.get(str(level), len(_RANKS) + 1)


def _part(value: dict[str, object] | dict[str, str]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode("ascii"))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
