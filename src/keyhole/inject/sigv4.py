"""AWS Signature Version 4: checks the client's signature, then signs the request again.

The client inside signs with placeholder keys. `check` verifies that signature and that its scope is
the policy's; `sign` writes the headers of a signature with the real keys over the request that goes
upstream. Called by the gateway for hosts whose injection is `sigv4`, after the request was allowed,
so its path has only one reading. Only headers are signed again: a body passes as bytes, or as an
event stream whose messages `event_signing.py` signs; other forms that sign the body piece by piece
are refused. Reads no clock; `now` is seconds since 1970.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.inject.aws_region import region_for, service_for
from keyhole.inject.canonical import (
    SignedRequest,
    canonical_form,
    only,
    query_fields,
    read_headers,
)
from keyhole.inject.stamp import moment_of, stamp_of
from keyhole.model.decision import Reason
from keyhole.model.errors import Unparsable
from keyhole.model.redacted import redacted_repr
from keyhole.model.secret import Secret

if TYPE_CHECKING:
    from keyhole.inject.injection import SignatureInjection

MAX_SKEW = 15 * 60
"""Seconds between the client's date and now: S3's tolerance; other services allow less."""

MAX_HASHED_BODY = 32 * 1024 * 1024
"""Bytes of a body that is read before its head is sent, for clients that do not declare its hash.
Bedrock accepts at most 25 MB, and clients that send more declare the hash or do not sign it
(I9)."""

MAX_SIGNED_HEADERS = 100
"""Headers that a client may sign: more than a head may have anyway (I9)."""

MAX_KEY_LENGTH = 8192
"""Characters of a secret key or a session token: tokens have grown to 2,000, and AWS names no
bound but that of a header."""

EMPTY_BODY = hashlib.sha256().hexdigest()
"""The digest of a request without a body, which need not be read for it."""

WRITTEN_NAMES = frozenset(
    (b"authorization", b"x-amz-date", b"x-amz-security-token", b"x-amz-content-sha256")
)
"""Lower-case names of the headers that `sign` writes; the client's own are never sent beside them
(I6)."""

_ALGORITHM = "AWS4-HMAC-SHA256"
END = "aws4_request"
"""The end of a scope."""
# Separated as every SDK does; AWS documents no other order.
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} +Credential=([^/,\s]+)/([0-9]{{8}})/([^/,\s]+)/([^/,\s]+)/{END}, *"
    r"SignedHeaders=((?::authority;)?[!#$%&'*+\-.^_`|~0-9a-z;]+), *Signature=([0-9a-f]{64})"
)
EVENTS = "STREAMING-AWS4-HMAC-SHA256-EVENTS"
"""The payload of a request whose body is an event stream, signed message by message
(`event_signing.py`)."""

_AUTHORITY = b":authority"

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNSIGNED = frozenset(("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"))

_ACCESS_KEY = re.compile(r"[A-Za-z0-9._~+=-]{3,128}")
_PRINTABLE = re.compile(rf"[\x21-\x7e]{{8,{MAX_KEY_LENGTH}}}")


class SigningKey(Struct, frozen=True, eq=False):
    """The real keys, the scope that they sign for, and the client's placeholders for them."""

    access_key: str
    secret_key: Secret
    session_token: Secret | None
    injection: SignatureInjection
    placeholder_id: str
    placeholder_secret: str

    __repr__ = redacted_repr("access_key")


class VerifiedSignature(Struct, frozen=True):
    """The parts of a client's valid signature that are needed to sign again."""

    region: str
    service: str
    signed: frozenset[bytes]
    """The headers that the client signed, in lower case."""
    payload: str
    """The payload's value in a signature: its digest, or a word for 'not signed'."""
    declared: bool
    """Whether the client sent that as a header too."""
    signature: str = ""
    """The client's, with which the events of a stream begin."""


class SignatureRefusal(Struct, frozen=True):
    """Why a request is not signed again; `why` is for a person and holds no client bytes."""

    flaw: Reason
    why: str


def read_keys(
    secret: Secret, injection: SignatureInjection, placeholder_id: str, placeholder_secret: str
) -> SigningKey:
    """Read a secret of two or three lines (access key id, secret key, session token). Raises
    Unparsable."""
    lines = [line.strip() for line in secret.reveal().strip().splitlines()]
    if len(lines) not in (2, 3):
        raise Unparsable(
            "a secret for 'sigv4' has two or three lines: access key id, secret access key, and "
            "the session token of temporary keys"
        )
    if not _ACCESS_KEY.fullmatch(lines[0]) or not all(map(_PRINTABLE.fullmatch, lines[1:])):
        raise Unparsable("a line of the secret for 'sigv4' does not look like an AWS key")
    return SigningKey(
        access_key=lines[0],
        secret_key=Secret(lines[1]),
        session_token=Secret(lines[2]) if lines[2:] else None,
        injection=injection,
        placeholder_id=placeholder_id,
        placeholder_secret=placeholder_secret,
    )


def wants_digest(request: SignedRequest) -> bool:
    """Whether the body's digest is needed to check: the client signed it and does not declare it.

    boto3 does so for all services but S3. The head cannot be sent before its body was read.
    """
    return b"x-amz-content-sha256" not in read_headers(request.lines)


def check(
    signing: SigningKey, request: SignedRequest, now: float, digest: str | None = None
) -> VerifiedSignature | SignatureRefusal:
    """Check that the client signed this request with its placeholders, for the scope of the policy.

    `digest` is the hex SHA-256 of the body, if `wants_digest`.
    """
    # 1. One signature, in the header, of the one form that is understood.
    if any(name.lower() == b"x-amz-signature" for name, _ in query_fields(request.query)):
        return SignatureRefusal(
            Reason.SIGNATURE_FORM, "signed addresses are not signed again; sign in the header"
        )
    headers = read_headers(request.lines)
    found = only(headers, b"authorization")
    if not found:
        return SignatureRefusal(
            Reason.SIGNATURE_MISSING, "the request is not signed once, in an Authorization header"
        )
    parts = _AUTHORIZATION.fullmatch(found)
    if parts is None:
        return SignatureRefusal(
            Reason.SIGNATURE_FORM, f"only {_ALGORITHM} in its usual form can be signed again"
        )
    key_id, day, region, service, names, signature = parts.groups()

    # 2. With this sandbox's placeholder, for the policy's service and region (I4).
    if key_id != signing.placeholder_id:
        return SignatureRefusal(
            Reason.SIGNATURE_KEY, "the access key id is not this sandbox's placeholder"
        )
    try:
        wanted = region_for(signing.injection, request.host)
        named = service_for(signing.injection, request.host)
    except Unparsable as error:
        return SignatureRefusal(Reason.SIGNATURE_SCOPE, error.message)
    if (service, region) != (named, wanted):
        scope = f"'{named}' in '{wanted}'"
        return SignatureRefusal(
            Reason.SIGNATURE_SCOPE, f"signed for another service or region than {scope}"
        )

    # 3. Over headers that are there, with the host among them, which binds the signature to it.
    signed = tuple(name.encode("ascii") for name in names.split(";"))
    if _AUTHORITY in signed:
        # AWS's JavaScript SDK signs the host by its name in HTTP/2; it was held to one value (I4).
        headers[_AUTHORITY] = headers.get(b"host", [])
    if not {b"host", _AUTHORITY}.intersection(signed) or len(signed) > MAX_SIGNED_HEADERS:
        return SignatureRefusal(Reason.SIGNATURE_HEADERS, "the signature must cover the host")
    if any(name not in headers for name in signed) or list(signed) != sorted(set(signed)):
        return SignatureRefusal(
            Reason.SIGNATURE_HEADERS, "the signed headers are not those of the request, in order"
        )

    # 4. At the present time.
    stamp = only(headers, b"x-amz-date")
    moment = moment_of(stamp)
    if moment is None or stamp[:8] != day:
        return SignatureRefusal(
            Reason.SIGNATURE_DATE, "X-Amz-Date is missing, or is not the day that was signed for"
        )
    if abs(now - moment) > MAX_SKEW:
        return SignatureRefusal(
            Reason.SIGNATURE_DATE, f"signed more than {MAX_SKEW // 60} minutes before or after now"
        )

    # 5. Over a body that passes unchanged.
    declared = b"x-amz-content-sha256" in headers
    payload = only(headers, b"x-amz-content-sha256") if declared else digest
    if payload is None:
        return SignatureRefusal(
            Reason.SIGNATURE_PAYLOAD, "the body's hash is not declared in X-Amz-Content-Sha256"
        )
    if payload.startswith("STREAMING-AWS4-") and payload != EVENTS:
        why = "the body is signed piece by piece, which cannot be signed again while it passes"
        return SignatureRefusal(
            Reason.SIGNATURE_PAYLOAD, f"{why}; have the client send it unsigned (HTTPS protects it)"
        )
    if payload not in (*_UNSIGNED, EVENTS) and not _HEX_DIGEST.fullmatch(payload):
        return SignatureRefusal(
            Reason.SIGNATURE_PAYLOAD, "X-Amz-Content-Sha256 is neither a digest nor a known word"
        )

    # 6. The signature is right.
    canonical = canonical_form(request, service, {name: headers[name] for name in signed}, payload)
    right = _signature(signing.placeholder_secret, f"{day}/{region}/{service}", stamp, canonical)
    if not hmac.compare_digest(right, signature):
        return SignatureRefusal(
            Reason.SIGNATURE_WRONG, "the signature is not that of the placeholder key"
        )
    return VerifiedSignature(wanted, named, frozenset(signed), payload, declared, signature)


def sign(
    signing: SigningKey, checked: VerifiedSignature, request: SignedRequest, now: float
) -> tuple[bytes, ...]:
    """The header lines to add to the request; none of `WRITTEN_NAMES` may be in it yet.

    The signature covers the host, every x-amz-* header, and the other headers that the client
    signed and that are still sent.
    """
    headers = read_headers(request.lines)
    if b"host" not in headers or not WRITTEN_NAMES.isdisjoint(headers):
        raise ValueError("a request is signed with its Host and without an earlier signature")
    stamp = stamp_of(now)
    written = [(b"X-Amz-Date", stamp)]
    if signing.session_token is not None:
        written.append((b"X-Amz-Security-Token", signing.session_token.reveal()))
    if checked.declared:
        written.append((b"X-Amz-Content-Sha256", checked.payload))
    lines = [b"%s: %s\r\n" % (name, value.encode("ascii")) for name, value in written]
    headers |= read_headers(lines)
    covered = {
        name: values
        for name, values in headers.items()
        if name == b"host" or name.startswith(b"x-amz-") or name in checked.signed
    }
    service = checked.service
    scope = f"{stamp[:8]}/{checked.region}/{service}"
    canonical = canonical_form(request, service, covered, checked.payload)
    signature = _signature(signing.secret_key.reveal(), scope, stamp, canonical)
    names = b";".join(sorted(covered)).decode("ascii")
    authorization = (
        f"Authorization: {_ALGORITHM} Credential={signing.access_key}/{scope}/{END}, "
        f"SignedHeaders={names}, Signature={signature}\r\n"
    )
    return (authorization.encode("ascii"), *lines)


def signature_in(line: bytes) -> str:
    """The signature of an Authorization line that `sign` has written."""
    return line.removesuffix(b"\r\n").rpartition(b"Signature=")[2].decode("ascii")


def scope_keys(signing: SigningKey, scope: str) -> tuple[bytes, bytes]:
    """The keys for a day, a region and a service: of the placeholder, and the real one."""
    real = signing.secret_key.reveal()
    return _scope_key(signing.placeholder_secret, scope), _scope_key(real, scope)


def _scope_key(secret_key: str, scope: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (*scope.split("/"), END):
        key = hmac.digest(key, part.encode("ascii"), "sha256")
    return key


def _signature(secret_key: str, scope: str, stamp: str, canonical: bytes) -> str:
    key = _scope_key(secret_key, scope)
    hashed = hashlib.sha256(canonical).hexdigest()
    to_sign = f"{_ALGORITHM}\n{stamp}\n{scope}/{END}\n{hashed}"
    return hmac.digest(key, to_sign.encode("ascii"), "sha256").hex()
