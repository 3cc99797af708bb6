"""Signed messages of an AWS event stream, written down once more, from their specification."""

from __future__ import annotations

import hashlib
import hmac
import time
import zlib

from keyhole.inject.event_signing import EventSigner
from keyhole.inject.injection import SignatureInjection
from keyhole.inject.sigv4 import EVENTS, SigningKey, VerifiedSignature
from keyhole.model.secret import Secret

NOON = 1782907200.0  # 2026-07-01 12:00:00 UTC
PLACEHOLDER_SECRET = "keyhole+/bcdefghijklmnopqrstuvwxyz012345"
HEAD, OWN_HEAD = "a" * 64, "b" * 64
"""The signatures of the head with which each chain begins: the client's and the gateway's."""


def event_signer() -> EventSigner:
    """The signer of a request to Bedrock."""
    signing = SigningKey(
        "AKIAREALREALREALREAL", Secret("real/secret+key0123456789abcdefghijklmno"), None,
        SignatureInjection("bedrock", ""), "AKIAKEYHOLE234567ABC", PLACEHOLDER_SECRET,
    )  # fmt: skip
    checked = VerifiedSignature("eu-west-1", "bedrock", frozenset(), EVENTS, True, HEAD)
    return EventSigner(signing, checked, OWN_HEAD)


def text(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def date(moment: float = NOON) -> bytes:
    return text(b":date") + b"\x08" + int(moment * 1000).to_bytes(8, "big")


def signature(value: bytes = bytes(32)) -> bytes:
    return text(b":chunk-signature") + b"\x06" + len(value).to_bytes(2, "big") + value


def message(headers: bytes, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """An event, with checksums that are right."""
    size = (12 + len(headers) + len(payload) + 4).to_bytes(4, "big")
    prelude = size + (len(headers) if length is None else length).to_bytes(4, "big")
    prelude += zlib.crc32(prelude).to_bytes(4, "big")
    whole = prelude + headers + payload
    return whole + zlib.crc32(whole).to_bytes(4, "big")


def signed(
    payload: bytes, prior: str = HEAD, moment: float = NOON, secret: str = PLACEHOLDER_SECRET
) -> bytes:
    """An event that a key signed, its headers in the order of AWS's Rust SDK."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(moment))
    scope = f"{stamp[:8]}/eu-west-1/bedrock/aws4_request"
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    digests = [hashlib.sha256(each).hexdigest() for each in (date(moment), payload)]
    to_sign = "\n".join(("AWS4-HMAC-SHA256-PAYLOAD", stamp, scope, prior, *digests))
    return message(signature(hmac.digest(key, to_sign.encode(), "sha256")) + date(moment), payload)


def signature_of(event: bytes) -> str:
    """The signature of an event, with which the next begins."""
    at = event.index(b":chunk-signature") + 19
    return event[at : at + 32].hex()


def chain(size: int) -> bytes:
    """Events of nothing, each signed with the one before, of about so many bytes together."""
    found, prior = b"", HEAD
    while len(found) < size:
        event = signed(b"", prior)
        prior = signature_of(event)
        found += event
    return found
