"""The secrets in a large file's address and fields, which a forge lends and which must not come
back (I7).

Used by `gateway/git/lfs.py` for each transfer. These secrets are not the vault's and live for
minutes, but code in the sandbox could carry them out, and they open a storage host from anywhere. A
replacement inside an object corrupts it, so values that cannot be secrets are not searched for.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from keyhole.inject import field_families
from keyhole.inject.scrub import Needles
from keyhole.inject.slots import GLOBAL_SLOTS, SlotLocation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from keyhole.wire.lfs_response import TransferAction

MAX_SEARCHED = 64
"""Characters at the end of a lent secret that are searched for: the signature of a token is there.
Rendering a token of a thousand characters takes ten milliseconds, each time."""

_CREDENTIALS = tuple(slot for slot in GLOBAL_SLOTS if slot.place is SlotLocation.HEADER)

_PLAIN_FIELDS = frozenset(
    "accept content-type cache-control content-disposition date x-amz-date x-amz-acl"
    " x-amz-content-sha256 x-amz-storage-class x-ms-blob-type x-ms-version x-ms-date".split()
)
_PLAIN_QUERY = re.compile(
    r"(?:x-(?:amz|goog)-(?:algorithm|credential|date|expires|signedheaders)|expires"
    r"|s[etvrp]|sk[tev]|response-.*|rs[a-z]{1,2}|x-id|versionid|(?:file)?name|path)",
    re.IGNORECASE,
)
"""Texts that are not secret. If `AWS4-HMAC-SHA256` were a needle, every download that contains it
would break."""

_MIXED = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[!-~]{16,}")
"""Texts that may be a secret, where it is not known."""


def is_credential(name: str) -> bool:
    """Whether a header field of this name is a credential in any place."""
    known = any(slot.covers(SlotLocation.HEADER, name) for slot in _CREDENTIALS)
    return known or field_families.is_credential(name.lower())


def transfer_secrets(action: TransferAction, oid: str) -> Needles:
    """The secrets in an action (I7): tokens in its fields, signatures in its query."""
    needles = Needles.none()
    for text in sorted({*_in_fields(action.header), *_in_query(action.address.query)} - {oid}):
        needles |= Needles.of(text[-MAX_SEARCHED:], "")
    return needles


def _in_fields(header: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, value in header:
        if name.lower() in _PLAIN_FIELDS:
            continue
        known = is_credential(name)
        scheme, space, token = value.partition(" ")
        if known and scheme.lower() == "basic":
            yield token.strip()
            yield from _basic_parts(token)
            continue
        # `Credential=…, SignedHeaders=…, Signature=…` as well as `Bearer …`.
        for word in re.split(r";? +|,", token if known and space else value):
            key, equals, rest = word.partition("=")
            named = equals and key.isalpha() and rest.strip("=")
            if named and key.lower() in ("credential", "signedheaders"):
                continue
            piece = rest if named else word
            if known or _MIXED.fullmatch(piece):
                yield piece


def _basic_parts(token: str) -> Iterator[str]:
    """The password alone, which a server that decodes the token may show."""
    try:
        decoded = base64.b64decode(token.strip(), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return
    _, colon, password = decoded.partition(":")
    yield password if colon else decoded


def _in_query(query: str) -> Iterator[str]:
    for field in query[1:].split("&"):
        name, _, value = field.partition("=")
        if not _PLAIN_QUERY.fullmatch(unquote(name)):
            yield from (text for text in {value, unquote(value)} if _MIXED.fullmatch(text))
