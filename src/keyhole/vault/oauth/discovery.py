"""Finds out who issues tokens for a service, from the metadata of the service and the issuer.

RFC 9728 (protected resource), RFC 8414 and OpenID Connect Discovery (authorization server). Pure:
`login_flow.py` fetches the documents. Every document is hostile:

- a service that names another origin would receive the token of that origin;
- a document of another issuer than the one that was asked is the mix-up attack;
- an endpoint that is not an https URL is not used, and the dialler judges each address (I4).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.policy.service_login import is_scope
from keyhole.vault.json_document import https_url, token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.model.https_url import HttpsUrl
    from keyhole.vault.json_document import Document

MAX_ITEMS = 64
"""Scopes or servers that are read from a document (I9)."""

_RESOURCE = "/.well-known/oauth-protected-resource"
_SERVER = "/.well-known/oauth-authorization-server"
_OPENID = "/.well-known/openid-configuration"
# RFC 9110 §11.2: a parameter is a token, `=`, and a quoted string; escapes in it are not needed.
_PARAMETER = re.compile(r'([A-Za-z_]{1,64})="([^"\\]{0,2048})"')


class ProtectedResource(Struct, frozen=True):
    """A service that wants a token, and the issuers that it names."""

    url: HttpsUrl
    """Its identifier, which is the `resource` of RFC 8707."""
    issuers: tuple[HttpsUrl, ...]
    scopes: tuple[str, ...] = ()


class AuthorizationServer(Struct, frozen=True):
    """An issuer of tokens and its endpoints."""

    issuer: HttpsUrl
    token: HttpsUrl
    authorization: HttpsUrl | None = None
    registration: HttpsUrl | None = None
    revocation: HttpsUrl | None = None
    device: HttpsUrl | None = None
    methods: tuple[str, ...] = ()
    """How a client may prove itself at the token endpoint; empty: not told."""
    names_itself: bool = False
    """Whether its answers in the browser have `iss` (RFC 9207)."""


class Challenge(Struct, frozen=True):
    """The answer of a service to a request without a token."""

    metadata: HttpsUrl | None = None
    scopes: tuple[str, ...] = ()


def read_challenge(values: Sequence[str], asked: HttpsUrl) -> Challenge:
    """Read `resource_metadata` and `scope` of WWW-Authenticate (RFC 9728 §5.1, RFC 6750 §3).

    A document at another origin than the service's own is ignored: a service has no reason to keep
    its metadata elsewhere, and an attacker has (I4).
    """
    for value in values:
        if not value.lower().startswith("bearer"):
            continue
        found = dict(_PARAMETER.findall(value))
        named = https_url(found.get("resource_metadata"))
        near = named if named is not None and named.origin == asked.origin else None
        return Challenge(near, read_scopes(found.get("scope", "").split()))
    return Challenge()


def resource_documents(url: HttpsUrl) -> tuple[HttpsUrl, ...]:
    """The URLs of a service's metadata: for its path, then for the whole host."""
    path = url.path.rstrip("/")
    own = (url.beside(f"{_RESOURCE}{path}"),) if path else ()
    return (*own, url.beside(_RESOURCE))


def server_documents(issuer: HttpsUrl) -> tuple[HttpsUrl, ...]:
    """The URLs of an issuer's metadata (RFC 8414 §3, and OpenID's two)."""
    path = issuer.path.rstrip("/")
    found = [issuer.beside(f"{_SERVER}{path}"), issuer.beside(f"{_OPENID}{path}")]
    if path:
        found.append(issuer.beside(f"{path}{_OPENID}"))
    return tuple(found)


def read_resource(document: Document, asked: HttpsUrl, *, exact: bool) -> ProtectedResource:
    """Read a service's description. `exact`: the policy names the URL that was asked, and not only
    its host. Raises Refused."""
    named = https_url(document.get("resource"))
    # Attack: the description names another service, whose token would then be sent to this one.
    whole = asked if exact or named is None else named
    if named is None or named.origin != asked.origin or not named.covers(whole):
        raise Refused(f"{asked.host} describes itself as another service than {asked.origin}")
    issuers = tuple(_urls(document.get("authorization_servers")))
    if not issuers:
        raise Refused(f"{asked.host} names nobody who issues tokens for it")
    return ProtectedResource(named, issuers, read_scopes(document.get("scopes_supported")))


def read_server(document: Document, issuer: HttpsUrl) -> AuthorizationServer:
    """Read an issuer's description. Raises Refused."""
    named = https_url(document.get("issuer"))
    # RFC 8414 §3.3: "MUST be identical"; otherwise its endpoints "MUST NOT be used" (mix-up).
    if named is None or named.identity != issuer.identity:
        raise Refused(f"the description at {issuer.host} is that of another issuer")
    tokens = https_url(document.get("token_endpoint"))
    if tokens is None:
        raise Refused(f"{issuer.host} has no https endpoint for tokens")
    methods = document.get("token_endpoint_auth_methods_supported")
    return AuthorizationServer(
        issuer,
        tokens,
        https_url(document.get("authorization_endpoint")),
        https_url(document.get("registration_endpoint")),
        https_url(document.get("revocation_endpoint")),
        https_url(document.get("device_authorization_endpoint")),
        tuple(word for each in _items(methods) if (word := token(each))),
        document.get("authorization_response_iss_parameter_supported") is True,
    )


def read_scopes(value: object) -> tuple[str, ...]:
    """The scopes of a list that are in their usual form."""
    return tuple(each for each in _items(value) if isinstance(each, str) and is_scope(each))


def _items(value: object) -> list[object]:
    return value[:MAX_ITEMS] if isinstance(value, list) else []


def _urls(value: object) -> list[HttpsUrl]:
    return [url for each in _items(value) if (url := https_url(each)) is not None]
