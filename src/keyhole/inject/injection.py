"""How a credential is written into a request: `{header, value}`, `{basic_user}`, `{sigv4}`, …

Parsed from the policy and from the catalogue. These are data; the gateway renders them with the
secret after it has stripped every other credential (I6).
"""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from keyhole.model.errors import Unparsable

# RFC 9110 §5.6.2 token
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD = re.compile(r"\{([^{}]*)\}")
_VALUE = re.compile(r"[\x20-\x7e]*")
_QUERY_KEY = re.compile(r"[A-Za-z0-9._~-]+")
_SIGNED_SERVICE = re.compile(r"[a-z0-9-]+")
_REGION = re.compile(r"[a-z0-9-]+")
_SCOPE = re.compile(r"[a-z0-9][a-z0-9._-]*")

MAX_PARTS = 4
"""Lines of a secret that has several parts (a key pair, a session token)."""

FIELDS = ("secret", "secret:base64", *(f"secret:{n}" for n in range(1, MAX_PARTS + 1)))
"""The names in a value: the secret, its base64 form, or one line of a secret with several."""

FRAMING_HEADERS = frozenset(
    "connection content-encoding content-length content-type expect host keep-alive "
    "proxy-connection te trailer transfer-encoding upgrade".split()
)
"""Headers that say where a request goes or where it ends: they never hold a credential."""

MINTING_SERVICES = frozenset(
    "sts iam sso sso-oauth signin rolesanywhere cognito-identity s3express".split()
)
"""AWS services that answer with keys: signing for one would hand real ones to the sandbox (I1)."""

SCOPE_PREFIX = "https://www.googleapis.com/auth/"
"""The prefix of Google's scopes; a policy writes the rest."""

OF_HOST = "*"
"""As `sigv4`: the service is the first part of the host's name."""


class HeaderInjection(Struct, frozen=True, tag=True):
    """Write a header whose value is a template naming the secret."""

    header: str
    value: str

    def __str__(self) -> str:
        return f"header {self.header}: {self.value}"


class BasicInjection(Struct, frozen=True, tag=True):
    """Write `Authorization: Basic` of this user and the secret as password."""

    user: str

    def __str__(self) -> str:
        return f"header Authorization: Basic {self.user}:{{secret}}"


class QueryInjection(Struct, frozen=True, tag=True):
    """Write a query field. Servers echo URLs, so a header is better (facts §0.5)."""

    key: str

    def __str__(self) -> str:
        return f"query {self.key}={{secret}}"


class SignatureInjection(Struct, frozen=True, tag=True):
    """Sign the request again with AWS Signature Version 4 for this service name."""

    service: str
    """Empty: the service in the host's name."""
    region: str = ""
    """Empty: the region in the host's name."""

    def __str__(self) -> str:
        place = f" in {self.region}" if self.region else ""
        service = self.service or "the service of the host"
        return f"signature AWS4-HMAC-SHA256 for {service}{place}"


class GoogleInjection(Struct, frozen=True, tag=True):
    """Write a short-lived Google access token, minted from a key file that is the secret."""

    scopes: tuple[str, ...]
    """The scopes of the token, without `SCOPE_PREFIX`."""

    def __str__(self) -> str:
        return f"header Authorization: Bearer (Google token for {' '.join(self.scopes)})"


Injection: TypeAlias = (
    HeaderInjection | BasicInjection | QueryInjection | SignatureInjection | GoogleInjection
)

KEYS = ("header", "value", "basic_user", "query", "sigv4", "region", "google")


def parse_injection(table: dict[str, object]) -> Injection:
    """Read one injection table; its keys say which kind it is."""
    if not all(isinstance(v, str) for v in table.values()):
        raise Unparsable("every value of 'inject' is text")
    texts = {k: v for k, v in table.items() if isinstance(v, str)}
    match sorted(texts):
        case ["header", "value"]:
            return HeaderInjection(_check_header(texts["header"]), _check_value(texts["value"]))
        case ["basic_user"]:
            return BasicInjection(_check_user(texts["basic_user"]))
        case ["query"]:
            if not _QUERY_KEY.fullmatch(texts["query"]):
                raise Unparsable("'query' names one field of the query")
            return QueryInjection(texts["query"])
        case ["sigv4"]:
            return SignatureInjection(_check_signed(texts["sigv4"]))
        case ["region", "sigv4"]:
            if not _REGION.fullmatch(texts["region"]):
                raise Unparsable("'region' is a lower-case word, as in 'eu-west-1'")
            return SignatureInjection(_check_signed(texts["sigv4"]), texts["region"])
        case ["google"]:
            return GoogleInjection(_check_scopes(texts["google"]))
        case ["header"]:
            raise Unparsable("'header' wants a 'value' beside it", 'value = "Bearer {secret}"')
    raise Unparsable(
        "'inject' is one of {header, value}, {basic_user}, {query}, {sigv4}, {google}",
        '{ header = "Authorization", value = "Bearer {secret}" }',
    )


def _check_header(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise Unparsable(f"{name!a} is not a header name")
    if name.lower() in FRAMING_HEADERS:
        raise Unparsable(f"'{name}' frames or routes a request; a credential cannot be there")
    return name


def _check_value(value: str) -> str:
    if not _VALUE.fullmatch(value):
        raise Unparsable("a header's value is printable ASCII")
    named = _FIELD.findall(value)
    unknown = [n for n in named if n not in FIELDS]
    if unknown or "{" in _FIELD.sub("", value) or "}" in _FIELD.sub("", value):
        fields = ", ".join(f"{{{f}}}" for f in FIELDS)
        raise Unparsable(f"a value may name {fields} and no other field", "Bearer {secret}")
    if not named:
        raise Unparsable("a value that does not name {secret} writes no credential")
    return value


def _check_user(user: str) -> str:
    # RFC 7617 §2: a user-id has no colon, and neither has control characters.
    if not _VALUE.fullmatch(user) or ":" in user:
        raise Unparsable("a Basic user is printable ASCII without ':'")
    return user


def _check_signed(service: str) -> str:
    if service == OF_HOST:
        return ""
    if not _SIGNED_SERVICE.fullmatch(service):
        raise Unparsable("'sigv4' names the service that is signed for, as in 'bedrock'")
    if service in MINTING_SERVICES:
        raise Unparsable(f"'{service}' hands out keys, so nothing is signed for it")
    return service


def _check_scopes(text: str) -> tuple[str, ...]:
    scopes = tuple(text.split(" "))
    if all(_SCOPE.fullmatch(s) for s in scopes):
        return scopes
    short = [s.removeprefix(SCOPE_PREFIX) for s in scopes]
    hint = " ".join(short) if all(_SCOPE.fullmatch(s) for s in short) else "cloud-platform"
    raise Unparsable("'google' names scopes by their last part, separated by spaces", hint)
