"""The requests for tokens and their answers: authorization code with PKCE, device code, renewal.

RFC 6749, 7636 (PKCE), 8628 (device), 8707 (`resource`), 9207 (`iss`). Pure: nothing is sent and no
clock is read. Messages never contain text of a server, which may be hostile; error codes that the
RFCs define are translated into our own words.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.redacted import redacted_repr
from keyhole.vault.json_document import https_url, lifetime, moment, token
from keyhole.vault.oauth.client import AUTHORIZATION_CODE, DEVICE_CODE, REFRESH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.model.https_url import HttpsUrl
    from keyhole.vault.json_document import Document
    from keyhole.vault.oauth.client import OAuthClient
    from keyhole.vault.oauth.discovery import AuthorizationServer

FORM = "application/x-www-form-urlencoded"

MAX_QUERY = 8 * 1024
"""Characters of the query of the browser's redirect."""

MAX_FIELDS = 32
"""Fields of that query."""

DEVICE_INTERVAL = 5.0
"""Seconds between two polls of a device login, unless the server asks for more (RFC 8628 §3.2)."""

MAX_DEVICE_INTERVAL = 60.0
MAX_DEVICE_LIFE = 1800.0
"""Seconds; longer ones are cut to this (I9)."""

_USER_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 -]{2,31}")

_REFUSALS = {
    "access_denied": "access was denied",
    "login_required": "nobody is logged in there",
    "consent_required": "nobody agreed",
    "invalid_request": "it does not understand the request",
    "invalid_client": "it does not know the client",
    "invalid_grant": "the code or token is no longer good",
    "invalid_scope": "it does not give these scopes",
    "invalid_target": "it issues no tokens for this service",
    "invalid_redirect_uri": "it does not accept a callback on this host",
    "invalid_client_metadata": "it does not accept the client's description",
    "unauthorized_client": "the client may not ask in this way",
    "unsupported_response_type": "it has no login by code",
    "unsupported_grant_type": "it has no login of this kind",
    "server_error": "it failed",
    "temporarily_unavailable": "it is overloaded",
    "expired_token": "the code was not used in time",
}
"""Codes of RFC 6749 §4.1.2.1 and §5.2, 7591, 8628, 8707 and OpenID, in words."""


def refusal(code: str, status: int = 0) -> str:
    """Why a server refused, in our own words."""
    other = f"it answered {status}" if status else "it gave a reason that is not known here"
    return _REFUSALS.get(code, other)


class Pledge(Struct, frozen=True, eq=False):
    """The two random values of one login: `state` ties the browser's redirect to this process, and
    the verifier ties the code to it."""

    state: str
    verifier: str

    __repr__ = redacted_repr("state", "verifier")

    @classmethod
    def make(cls) -> Pledge:
        """Fresh values, each of 256 bits."""
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32))

    @property
    def challenge(self) -> str:
        """S256 of the verifier (RFC 7636 §4.2)."""
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


class WantedGrant(Struct, frozen=True):
    """The service and scopes for which a token is requested."""

    resource: str
    """The service's identifier (RFC 8707); empty: the server knows no resources."""
    scopes: tuple[str, ...] = ()


def authorization_link(
    endpoint: HttpsUrl,
    client: OAuthClient,
    wanted: WantedGrant,
    redirect: str,
    pledge: Pledge,
    more: Sequence[tuple[str, str]] = (),
) -> str:
    """The link that a person opens."""
    fields = {
        "response_type": "code",
        "client_id": client.id,
        "redirect_uri": redirect,
        "code_challenge": pledge.challenge,
        "code_challenge_method": "S256",
        "state": pledge.state,
    }
    fields |= _scope(wanted) | _resource(wanted) | dict(more)
    sign = "&" if "?" in endpoint.text else "?"
    return f"{endpoint.text}{sign}{urlencode(fields)}"


class Returned(Struct, frozen=True, eq=False):
    """A browser's redirect. The zero value does not belong to this login."""

    ours: bool = False
    """Whether it has this login's `state`."""
    code: str = ""
    why: str = ""
    """Why there is no code, in our own words."""

    __repr__ = redacted_repr("code")


def read_return(query: str, pledge: Pledge, server: AuthorizationServer | None) -> Returned:
    """Read the query of a browser's redirect. If the issuer is not known, `iss` is not checked."""
    if len(query) > MAX_QUERY:
        return Returned()
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        return Returned()
    state = found.get("state", [])
    # Attack: another user, or a web page, sends a code of the attacker's own account here.
    if len(state) != 1 or not hmac.compare_digest(state[0].encode(), pledge.state.encode()):
        return Returned()
    if any(len(values) > 1 for values in found.values()):
        return Returned(ours=True, why="it came back with a field twice")
    if server is not None and not _is_of(server, found.get("iss", [""])[0]):
        return Returned(ours=True, why="another issuer answered than the one that was asked")
    if "error" in found:
        return Returned(ours=True, why=refusal(found["error"][0]))
    code = token(found.get("code", [""])[0])
    return Returned(ours=True, code=code, why="" if code else "it came back without a code")


def _is_of(server: AuthorizationServer, issuer: str) -> bool:
    """RFC 9207 §2.4: `iss` must be the issuer that was asked. A server that announces `iss` in its
    metadata must send it."""
    if not issuer:
        return not server.names_itself
    named = https_url(issuer)
    return named is not None and named.identity == server.issuer.identity


def code_fields(
    client: OAuthClient, wanted: WantedGrant, redirect: str, code: str, pledge: Pledge
) -> dict[str, str]:
    """The request that spends a code (RFC 6749 §4.1.3)."""
    fields = {
        "grant_type": AUTHORIZATION_CODE,
        "code": code,
        "redirect_uri": redirect,
        "code_verifier": pledge.verifier,
    }
    return fields | client.fields | _resource(wanted)


def refresh_fields(client: OAuthClient, resource: str, refresh: str) -> dict[str, str]:
    """The request that spends a refresh token (RFC 6749 §6). It repeats `resource`: without it some
    servers issue a token that no service accepts."""
    fields = {"grant_type": REFRESH, "refresh_token": refresh}
    return fields | client.fields | _resource(WantedGrant(resource))


def device_fields(client: OAuthClient, wanted: WantedGrant) -> dict[str, str]:
    """The request for a device code (RFC 8628 §3.1)."""
    return client.fields | _scope(wanted) | _resource(wanted)


def device_poll_fields(client: OAuthClient, wanted: WantedGrant, code: str) -> dict[str, str]:
    """The request that asks whether the person has agreed (RFC 8628 §3.4)."""
    fields = {"grant_type": DEVICE_CODE, "device_code": code}
    return fields | client.fields | _resource(wanted)


def encoded(fields: Mapping[str, str]) -> bytes:
    """A form's body."""
    return urlencode(fields).encode("ascii")


class DeviceCode(Struct, frozen=True, eq=False):
    """The code that a person types on another device, and the page for it."""

    code: str
    shown: str
    where: HttpsUrl
    whole: HttpsUrl | None
    """The same page with the code in its URL, if the server gives one."""
    life: float
    interval: float

    __repr__ = redacted_repr("code", "shown", "whole")


def read_device_code(document: Document, host: str) -> DeviceCode:
    """The answer to a request for a device code. Raises Refused, with nothing of the answer."""
    code, shown = token(document.get("device_code")), document.get("user_code")
    where = https_url(document.get("verification_uri"))
    life = moment(document.get("expires_in"))
    if not code or not isinstance(shown, str) or not _USER_CODE.fullmatch(shown):
        raise Refused(f"{host} gave no code that a person could type")
    if where is None or life is None:
        raise Refused(f"{host} did not say where to type its code, or for how long")
    interval = moment(document.get("interval")) or DEVICE_INTERVAL
    return DeviceCode(
        code,
        shown,
        where,
        https_url(document.get("verification_uri_complete")),
        min(life, MAX_DEVICE_LIFE),
        min(max(interval, 1.0), MAX_DEVICE_INTERVAL),
    )


class GrantedTokens(Struct, frozen=True, eq=False):
    """Tokens as a server gave them. The repr shows no character of them."""

    access: str
    refresh: str = ""
    seconds: float | None = None
    """How long the access token lasts, if the server says so."""
    scopes: tuple[str, ...] | None = None

    __repr__ = redacted_repr("access", "refresh")


def read_tokens(document: Document) -> GrantedTokens | str:
    """The tokens of an answer (RFC 6749 §5.1), or why there is none that can be used."""
    access, kind = token(document.get("access_token")), document.get("token_type")
    if not access:
        return "there is no token in the answer, or one with characters that no token has"
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return "the token is not a bearer token, and no other kind can be used"
    scope = document.get("scope")
    scopes = tuple(scope.split()) if isinstance(scope, str) else None
    refresh = token(document.get("refresh_token"))
    return GrantedTokens(access, refresh, lifetime(document.get("expires_in")), scopes)


def _scope(wanted: WantedGrant) -> dict[str, str]:
    return {"scope": " ".join(wanted.scopes)} if wanted.scopes else {}


def _resource(wanted: WantedGrant) -> dict[str, str]:
    return {"resource": wanted.resource} if wanted.resource else {}
