"""How a person logs in to a service with `keyhole login`, where the service itself does not say."""

from __future__ import annotations

import re

from msgspec import Struct

from keyhole.model.errors import Unparsable
from keyhole.model.https_url import HttpsUrl
from keyhole.model.secret import SecretRef, SecretScheme

# RFC 6749 §3.3: scope-token
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")
_CLIENT = re.compile(r"[\x21-\x7e]{1,512}")


class ServiceLogin(Struct, frozen=True):
    """The settings of a service's login; None: what the service says."""

    url: HttpsUrl | None = None
    issuer: HttpsUrl | None = None
    client: str | None = None
    client_secret: SecretRef | None = None
    scopes: tuple[str, ...] | None = None


def is_scope(text: str) -> bool:
    """Whether this is one scope, as servers write them."""
    return _SCOPE.fullmatch(text) is not None


def parse_scope(text: str) -> str:
    """One scope of a policy."""
    if not is_scope(text):
        raise Unparsable("a scope has no space, quote or backslash; each is an item of its own")
    return text


def parse_client(text: str) -> str:
    """The id of a client."""
    if not _CLIENT.fullmatch(text):
        raise Unparsable("a client's id has printable ASCII characters and no space")
    return text


def parse_client_secret(text: str) -> SecretRef:
    """The reference to a client's secret."""
    ref = SecretRef.parse(text)
    if ref.source is not SecretScheme.STORE:
        raise Unparsable("a client's secret is kept in the store", "store:NAME")
    return ref
