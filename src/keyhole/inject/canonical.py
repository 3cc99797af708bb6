"""The canonical form of a request, which AWS Signature Version 4 signs. Used by `sigv4.py`.

It is made as AWS makes it from the request that arrives there, so that one form serves to check a
client's signature and to sign again. Paths with dot segments or empty ones were refused before
(`model/path.py`), so there is nothing to normalise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote, unquote_to_bytes

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Headers: TypeAlias = dict[bytes, list[bytes]]

_ENCODED_ONCE = frozenset(("s3", "s3-outposts", "s3-object-lambda"))
"""Services whose canonical path is the path; all others escape it a second time."""


class SignedRequest(Struct, frozen=True):
    """A request as the client sent it, or as it is sent upstream."""

    host: str
    """The name of the connection, which the request's Host was checked against (I4)."""
    method: str
    path: str
    query: str | None
    lines: Sequence[bytes]
    """Header lines `Name: value`, Host among them, with or without their line ends."""


def read_headers(lines: Iterable[bytes]) -> Headers:
    """Values by lower-case name, trimmed and with runs of blanks as one space, in their order."""
    headers: Headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers.setdefault(name.lower(), []).append(b" ".join(value.split()))
    return headers


def only(headers: Headers, name: bytes) -> str:
    """The value of a header that occurs once; empty if it is absent, repeated or not ASCII."""
    match headers.get(name):
        case [value] if value.isascii():
            return value.decode("ascii")
    return ""


def query_fields(query: str | None) -> list[tuple[bytes, bytes]]:
    """Names and values of a query, decoded; AWS reads '+' as a blank, as forms do."""
    pairs = (part.replace("+", " ").partition("=") for part in (query or "").split("&") if part)
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pairs]


def canonical_form(request: SignedRequest, service: str, headers: Headers, payload: str) -> bytes:
    """The bytes whose hash is signed; `headers` are those that the signature covers."""
    path = unquote_to_bytes(request.path) if service in _ENCODED_ONCE else request.path
    fields = sorted(
        (quote(name, safe=""), quote(value, safe="")) for name, value in query_fields(request.query)
    )
    names = sorted(headers)
    return b"\n".join(
        (
            request.method.encode("ascii"),
            quote(path, safe="/").encode("ascii"),
            "&".join(f"{name}={value}" for name, value in fields).encode("ascii"),
            *(name + b":" + b",".join(headers[name]) for name in names),
            b"",
            b";".join(names),
            payload.encode("ascii"),
        )
    )
