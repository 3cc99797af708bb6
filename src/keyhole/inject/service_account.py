"""Google key files, and the short-lived access tokens that are minted from them.

The secret of a `google` injection is a file as `gcloud` writes it: a service account's key, or the
refresh token of a person's login. The gateway requests a token with
`token_request`, reads the response with `read_token`, and requests another before it expires. No
part of the file ever goes to a service's host, and nothing in the file chooses the endpoint. Pure:
sends nothing and reads no clock; `now` is seconds since 1970.

Imported only by code that mints tokens, since the cryptography library is slow to load.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlencode

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from msgspec import Struct

from keyhole.inject.injection import SCOPE_PREFIX, GoogleInjection
from keyhole.model.errors import CredentialUnusable, Unparsable
from keyhole.model.redacted import redacted_repr
from keyhole.model.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

ISSUER_HOST = "oauth2.googleapis.com"
ISSUER_PATH = "/token"
"""The token endpoint. A file's own `token_uri` is not read: a hostile file would have the
assertion, or a refresh token, sent to a host of its choice (I4)."""

ASSERTION_SECONDS = 3600
"""Seconds that an assertion is valid: the longest that Google accepts."""

CLOCK_SLACK = 30
"""Seconds by which an assertion is dated back: one from the future is refused, and clocks
differ."""

MAX_FILE = 64 * 1024
"""Characters of a key file: they have about 2,400."""

MAX_ANSWER = 64 * 1024
"""Bytes of an answer of the token endpoint that are read: they have about 1,100 (I9)."""

MAX_TOKEN = 8192
"""Characters of an access token: they have about 1,024, and it must fit into one header."""

MAX_LIFE = 24 * 3600
"""The longest life of a token that is believed: usually an hour, or twelve where an organisation
allows it."""

MIN_KEY_BITS = 2048
"""Bits of a key; Google's have 2,048."""

_EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+")
_WORD = re.compile(r"[\x21-\x7e]{1,2048}")
# RFC 6750 §2.1 b64token
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNIVERSE = "googleapis.com"


class ServiceAccount(Struct, frozen=True, eq=False):
    """A service account's key, with which an assertion is signed."""

    email: str
    key_id: str
    key: RSAPrivateKey
    scopes: tuple[str, ...]

    __repr__ = redacted_repr("key")


class RefreshLogin(Struct, frozen=True, eq=False):
    """A person's login: a refresh token, and the client that it was given to."""

    client_id: str
    client_secret: Secret
    refresh_token: Secret
    scopes: tuple[str, ...]


GoogleAccount: TypeAlias = ServiceAccount | RefreshLogin


class TokenRequest(Struct, frozen=True):
    """One POST, as `application/x-www-form-urlencoded`, to the endpoint that issues tokens."""

    host: str
    path: str
    body: bytes

    __repr__ = redacted_repr("body")


class AccessToken(Struct, frozen=True, eq=False):
    """An access token, and the seconds that it lasts from the request on."""

    secret: Secret
    expires_in: int


def read_account(secret: Secret, injection: GoogleInjection) -> GoogleAccount:
    """Read a key file. Raises Unparsable with a message that contains nothing of it."""
    text = secret.reveal()
    found = _json(text) if len(text) <= MAX_FILE else None
    if found is None:
        raise Unparsable("a secret for 'google' is a key file as gcloud writes it, one JSON object")
    if found.get("universe_domain", _UNIVERSE) != _UNIVERSE:
        raise Unparsable(f"the key file is for another universe than {_UNIVERSE}")
    scopes = tuple(SCOPE_PREFIX + scope for scope in injection.scopes)
    match found.get("type"):
        case "service_account":
            return ServiceAccount(
                email=_text(found, "client_email", _EMAIL),
                key_id=_text(found, "private_key_id", _WORD),
                key=_key(found.get("private_key")),
                scopes=scopes,
            )
        case "authorized_user":
            return RefreshLogin(
                client_id=_text(found, "client_id", _WORD),
                client_secret=Secret(_text(found, "client_secret", _WORD)),
                refresh_token=Secret(_text(found, "refresh_token", _WORD)),
                scopes=scopes,
            )
    raise Unparsable("the key file's 'type' is neither 'service_account' nor 'authorized_user'")


def token_request(account: GoogleAccount, now: float) -> TokenRequest:
    """The request for a token."""
    if isinstance(account, ServiceAccount):
        # RFC 7523 §2.1
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": _assertion(account, int(now)),
        }
    else:
        # RFC 6749 §6; the scope may be narrower than that of the login, and no wider
        form = {
            "grant_type": "refresh_token",
            "client_id": account.client_id,
            "client_secret": account.client_secret.reveal(),
            "refresh_token": account.refresh_token.reveal(),
            "scope": " ".join(account.scopes),
        }
    return TokenRequest(ISSUER_HOST, ISSUER_PATH, urlencode(form).encode("ascii"))


_REFUSED = {
    "invalid_grant": "the key or login is revoked, expired or unknown, or this host's clock is off",
    "invalid_client": "the login's client is unknown",
    "unauthorized_client": "the account may not ask for tokens in this way",
    "invalid_scope": "the account may not have a token of this scope",
    "access_denied": "the account is not allowed to do this",
    "disabled_client": "the login's client is disabled",
    "deleted_client": "the login's client is deleted",
}
"""The codes that Google returns (RFC 6749 §5.2 and its own); other texts of a response are not
shown, since they might quote the request (I8)."""

_OK = 200


def read_token(status: int, body: bytes) -> AccessToken:
    """The token in a response. Raises CredentialUnusable with a message that contains nothing of
    it."""
    found = _json(body) if len(body) <= MAX_ANSWER else None
    if status != _OK:
        said = _REFUSED.get(str((found or {}).get("error")), f"it answered {status}")
        raise CredentialUnusable(f"Google gave no token: {said}")
    match found:
        case {"access_token": str(token), "expires_in": int(life), "token_type": str(kind)} if (
            kind.lower() == "bearer"
            and _TOKEN.fullmatch(token)
            and len(token) <= MAX_TOKEN
            and not isinstance(life, bool)
            and 0 < life <= MAX_LIFE
        ):
            return AccessToken(Secret(token), life)
    raise CredentialUnusable("Google's answer holds no token in a form that is understood")


def _assertion(account: ServiceAccount, now: int) -> str:
    issued = now - CLOCK_SLACK
    header = {"alg": "RS256", "typ": "JWT", "kid": account.key_id}
    claims = {
        "iss": account.email,
        "scope": " ".join(account.scopes),
        "aud": f"https://{ISSUER_HOST}{ISSUER_PATH}",
        "iat": issued,
        "exp": issued + ASSERTION_SECONDS,
    }
    # RFC 7515 §7.1
    signed = f"{_part(header)}.{_part(claims)}"
    signature = account.key.sign(signed.encode("ascii"), PKCS1v15(), SHA256())
    return f"{signed}.{_base64url(signature)}"


def _part(value: Mapping[str, object]) -> str:
    return _base64url(json.dumps(value, separators=(",", ":")).encode("ascii"))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _json(text: str | bytes) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(found: dict[str, object], name: str, form: re.Pattern[str]) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise Unparsable(f"the key file's '{name}' is missing or not in its usual form")
    return value


def _key(value: object) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(str(value).encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey) or key.key_size < MIN_KEY_BITS:
        raise Unparsable(
            f"the key file's 'private_key' is not an RSA key of {MIN_KEY_BITS} bits or more"
        )
    return key
