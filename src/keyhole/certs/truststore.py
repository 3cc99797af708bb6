"""Trusted roots in the form that a JVM reads: a PKCS12 trust store.

Called by `app` for a sandbox that has a JVM, to lie at `javax.net.ssl.trustStore` or over a JDK's
`cacerts`. It holds public certificates alone, so it is neither encrypted nor sealed: that is the
shape of the `cacerts` that JDKs ship since 18, and the only one that opens both without a password
(as a JVM opens its `cacerts`) and with the customary one (as programs and `keytool` do).
"""

from __future__ import annotations

import hashlib
import warnings

from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from keyhole.certs.roots import certificates
from keyhole.model.errors import ResourceUnusable

PASSWORD = "changeit"  # noqa: S105  # not a secret: what every JVM's documentation says to type
"""The password for programs that need one; the store needs none."""

_LONG_FORM = 0x80
"""DER: the length's low bits count the bytes that hold it (X.690 §8.1.3.5)."""


def java_truststore(bundle: bytes) -> bytes:
    """All certificates of the PEM text as trusted entries, named by their fingerprints."""
    entries = []
    with warnings.catch_warnings():
        # Old roots with a serial number of zero or less are trusted by this host all the same.
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for der in certificates(bundle):
            try:
                certificate = x509.load_der_x509_certificate(der)
            except ValueError:
                continue  # skip this root alone, so that an odd one does not lose all others
            name = hashlib.sha256(der).hexdigest()[:32].encode()
            entries.append(pkcs12.PKCS12Certificate(certificate, name))
    if not entries:
        raise ResourceUnusable("no certificate in it")
    # It adds the attribute without which a JVM does not take an entry for a trusted one.
    return _unsealed(pkcs12.serialize_java_truststore(entries, NoEncryption()))


def _unsealed(store: bytes) -> bytes:
    """Without the MAC, which is made with an empty password and fails for any other.

    PFX ::= SEQUENCE { version INTEGER, authSafe ContentInfo, macData MacData OPTIONAL }
    (RFC 7292 §4)
    """
    start, _ = _content(store, 0)
    _, after_version = _content(store, start)
    _, after_contents = _content(store, after_version)
    body = store[start:after_contents]
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    # One certificate is longer than 127 bytes, so the long form is the shortest.
    return b"\x30" + bytes([_LONG_FORM | len(size)]) + size + body


def _content(data: bytes, at: int) -> tuple[int, int]:
    """The beginning and end of the content of the DER element at this position."""
    length, start = data[at + 1], at + 2
    if length & _LONG_FORM:
        count = length & ~_LONG_FORM
        length, start = int.from_bytes(data[start : start + count]), start + count
    return start, start + length
