"""How a credential is written into a request: `{header, value}`, `{basic_user}`, `{query}`, …

Parsed from the policy and from the catalogue alike. What is written here is data; the gateway
renders it with the secret in hand, after every other credential was stripped (I6).
"""

from __future__ import annotations

import re
from typing import TypeAlias

from keyhole.model.errors import Unparsable
from keyhole.model.value import dataclass

# RFC 9110 §5.6.2 token
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FIELD = re.compile(r"\{([^{}]*)\}")
_VALUE = re.compile(r"[\x20-\x7e]*")
_QUERY_KEY = re.compile(r"[A-Za-z0-9._~-]+")
_SIGNED_SERVICE = re.compile(r"[a-z0-9-]+")

MAX_PARTS = 4
"""Lines of a secret that has several parts (a key pair, a session token)."""

FIELDS = ("secret", "secret:base64", *(f"secret:{n}" for n in range(1, MAX_PARTS + 1)))
"""What a value may name: the secret, its base64 form, or one line of a secret of several."""

FRAMING_HEADERS = frozenset(
    "connection content-encoding content-length content-type expect host keep-alive "
    "proxy-connection te trailer transfer-encoding upgrade".split()
)
"""Headers that say where a request goes or where it ends: never a place for a credential."""


@dataclass(frozen=True, slots=True)
class HeaderInjection:
    """Write a header whose value is a template naming the secret."""

    header: str
    value: str

    def __str__(self) -> str:
        return f"header {self.header}: {self.value}"


@dataclass(frozen=True, slots=True)
class BasicInjection:
    """Write `Authorization: Basic` of this user and the secret as password."""

    user: str

    def __str__(self) -> str:
        return f"header Authorization: Basic {self.user}:{{secret}}"


@dataclass(frozen=True, slots=True)
class QueryInjection:
    """Write a query field. Servers echo URLs, so a header is to be preferred (facts §0.5)."""

    key: str

    def __str__(self) -> str:
        return f"query {self.key}={{secret}}"


@dataclass(frozen=True, slots=True)
class SignatureInjection:
    """Sign the request anew with AWS Signature Version 4 for this service name."""

    service: str

    def __str__(self) -> str:
        return f"signature AWS4-HMAC-SHA256 for {self.service}"


Injection: TypeAlias = HeaderInjection | BasicInjection | QueryInjection | SignatureInjection

KEYS = ("header", "value", "basic_user", "query", "sigv4")


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
            if not _SIGNED_SERVICE.fullmatch(texts["sigv4"]):
                raise Unparsable("'sigv4' names the service that is signed for, as in 'bedrock'")
            return SignatureInjection(texts["sigv4"])
        case ["header"]:
            raise Unparsable("'header' wants a 'value' beside it", 'value = "Bearer {secret}"')
    raise Unparsable(
        "'inject' is one of {header, value}, {basic_user}, {query}, {sigv4}",
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
