"""Trusted roots in the form that a JVM reads: a PKCS12 trust store.

Called by `app` for a sandbox that has a JVM, to lie at `javax.net.ssl.trustStore` or over a JDK's
`cacerts`. It holds public certificates alone, so it is neither encrypted nor sealed: that is the
shape of the `cacerts` that JDKs ship since 18, and the only one that opens both without a password
(as a JVM opens its `cacerts`) and with the customary one (as programs and `keytool` do).

The DER is written here, since importing the library that can do so would add 60 ms to the start of
every run; a test compares the two, byte by byte.
"""

from __future__ import annotations

import hashlib

from keyhole.certs.roots import certificates
from keyhole.model.errors import ResourceUnusable

PASSWORD = "changeit"  # noqa: S105  # not a secret: what every JVM's documentation says to type
"""The password for programs that need one; the store needs none."""

_LONG_FORM = 0x80
"""DER: the length's low bits count the bytes that hold it (X.690 §8.1.3.5)."""

_INTEGER, _OCTETS, _BMP_STRING = 0x02, 0x04, 0x1E
_SEQUENCE, _SET, _EXPLICIT = 0x30, 0x31, 0xA0
_PARTS = b"\x30\x30\x03"
"""The tags of a certificate's parts: what is signed, the algorithm, the signature."""
# Object identifiers, with their tag and length.
_DATA = bytes.fromhex("06092a864886f70d010701")
_CERTIFICATE_BAG = bytes.fromhex("060b2a864886f70d010c0a0103")
_X509 = bytes.fromhex("060a2a864886f70d01091601")
_FRIENDLY_NAME = bytes.fromhex("06092a864886f70d010914")
# Oracle's, without which a JVM does not take an entry for a trusted one; for any use.
_TRUSTED_USE = bytes.fromhex("060c6086480186f966adca7b0101")
_ANY_USE = bytes.fromhex("0604551d2500")


def java_truststore(bundle: bytes) -> bytes:
    """All certificates of the PEM text as trusted entries, named by their fingerprints."""
    # What is no certificate is left out by itself, so that it does not lose all others.
    entries = b"".join(_entry(der) for der in certificates(bundle) if _is_certificate(der))
    if not entries:
        raise ResourceUnusable("no certificate in it")
    # PFX ::= SEQUENCE { version INTEGER, authSafe ContentInfo, macData MacData OPTIONAL }
    # (RFC 7292 §4), without the MAC: one of an empty password fails for any other.
    safe = _content_info(_element(_SEQUENCE, entries))
    return _element(
        _SEQUENCE, _element(_INTEGER, b"\x03") + _content_info(_element(_SEQUENCE, safe))
    )


def _entry(der: bytes) -> bytes:
    """A SafeBag with one certificate (RFC 7292 §4.2.3)."""
    name = hashlib.sha256(der).hexdigest()[:32].encode("utf-16-be")
    certificate = _element(_SEQUENCE, _X509 + _element(_EXPLICIT, _element(_OCTETS, der)))
    attributes = (
        _FRIENDLY_NAME + _element(_SET, _element(_BMP_STRING, name)),
        _TRUSTED_USE + _element(_SET, _ANY_USE),
    )
    told = b"".join(sorted(_element(_SEQUENCE, each) for each in attributes))
    return _element(
        _SEQUENCE,
        _CERTIFICATE_BAG + _element(_EXPLICIT, certificate) + _element(_SET, told),
    )


def _content_info(content: bytes) -> bytes:
    """ContentInfo of the type `data` (RFC 2315 §7)."""
    return _element(_SEQUENCE, _DATA + _element(_EXPLICIT, _element(_OCTETS, content)))


def _element(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < _LONG_FORM:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, _LONG_FORM | len(length))) + length + content


def _is_certificate(der: bytes) -> bool:
    """Whether this has the form of one: SEQUENCE { SEQUENCE, SEQUENCE, BIT STRING } (RFC 5280)."""
    start, end = _content(der, 0)
    if der[:1] != bytes((_SEQUENCE,)) or end != len(der):
        return False
    tags = b""
    while start < end and len(tags) < len(_PARTS):
        tags += der[start : start + 1]
        _, start = _content(der, start)
    return start == end and tags == _PARTS


def _content(data: bytes, at: int) -> tuple[int, int]:
    """The beginning and end of the content of the DER element at this position; the end lies
    beyond the data where the element is not whole."""
    length, start = int.from_bytes(data[at + 1 : at + 2]), at + 2
    if length & _LONG_FORM:
        count = length & ~_LONG_FORM
        length, start = int.from_bytes(data[start : start + count]), start + count
    return start, start + length
