"""Keyhole as a client of an authorization server: configured, or registered (RFC 7591).

Pure. Such a client usually has no secret (RFC 8252 §8.4). If a server issues one anyway, the client
sends it back by the method that the server names.
"""

from __future__ import annotations

import base64
import enum
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.model.redacted import redacted_repr
from keyhole.vault.json_document import token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.vault.json_document import Document

NAME = "Keyhole"
"""The name that the authorization server shows to the person."""

AUTHORIZATION_CODE = "authorization_code"
DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
REFRESH = "refresh_token"


class ClientProof(enum.StrEnum):
    """How a client proves itself at the token endpoint (RFC 7591 §2)."""

    NONE = "none"
    POST = "client_secret_post"
    BASIC = "client_secret_basic"


class OAuthClient(Struct, frozen=True, eq=False):
    """A client of an authorization server."""

    id: str
    secret: str = ""
    proof: ClientProof = ClientProof.NONE

    __repr__ = redacted_repr("secret")

    @property
    def fields(self) -> dict[str, str]:
        """The fields of a token request that name it."""
        if self.proof is ClientProof.BASIC:
            return {}
        secret = {"client_secret": self.secret} if self.proof is ClientProof.POST else {}
        return {"client_id": self.id} | secret

    @property
    def authorization(self) -> str:
        """The header that names it; empty if the fields do."""
        if self.proof is not ClientProof.BASIC:
            return ""
        # RFC 6749 §2.3.1: each part is form-encoded first.
        pair = f"{quote(self.id, safe='')}:{quote(self.secret, safe='')}"
        return "Basic " + base64.b64encode(pair.encode("ascii")).decode("ascii")


def configured_client(id_: str, secret: str, methods: Sequence[str]) -> OAuthClient:
    """A client that the person registered; one with a secret proves itself by Basic, unless the
    server accepts it in the body alone (RFC 8414 §2: Basic is the default)."""
    if not secret:
        return OAuthClient(id_)
    by_post = ClientProof.POST in methods and ClientProof.BASIC not in methods
    return OAuthClient(id_, secret, ClientProof.POST if by_post else ClientProof.BASIC)


def registration(redirect: str, scopes: Sequence[str], *, device: bool) -> Document:
    """The request that registers a client of this host."""
    document: Document = {
        "client_name": NAME,
        "application_type": "native",
        "token_endpoint_auth_method": ClientProof.NONE,
        "grant_types": [DEVICE_CODE if device else AUTHORIZATION_CODE, REFRESH],
    }
    if not device:
        document |= {"redirect_uris": [redirect], "response_types": ["code"]}
    if scopes:
        document["scope"] = " ".join(scopes)
    return document


def registered_client(answer: Document, host: str) -> OAuthClient:
    """The client that was registered. Raises Refused, with nothing of the answer."""
    found, secret = token(answer.get("client_id")), token(answer.get("client_secret"))
    if not found:
        raise Refused(f"{host} registered no client")
    if not secret:
        return OAuthClient(found)
    named = answer.get("token_endpoint_auth_method")
    # RFC 7591 §2: "If unspecified or omitted, the default is client_secret_basic".
    proof = {each.value: each for each in ClientProof}.get(str(named), ClientProof.BASIC)
    return OAuthClient(found, secret, proof)
