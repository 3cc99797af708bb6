"""The CA of a sandbox that outlives its gateway, as a pod outlives the agent of its node.

Certificate and key in one PEM text, which the agent keeps and hands to each gateway that serves the
pod. Programs that have read the certificate then go on trusting the gateway.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from keyhole.certs.authority import Authority, make_root
from keyhole.model.errors import Unparsable

KEPT_LIFETIME = timedelta(days=30)
"""Longer than a session's own: a pod keeps its CA over many restarts of the agent. One pod alone
trusts it."""


def new_kept_authority(name: str, lifetime: timedelta = KEPT_LIFETIME) -> bytes:
    """A new CA: its certificate, and then its key, in PEM."""
    key, certificate = make_root(name, lifetime, datetime.now(UTC))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem) + key.private_bytes(pem, *form)


def open_kept_authority(kept: bytes) -> Authority:
    """The authority of a kept CA. Raises Unparsable."""
    certificate = _certificate(kept)
    try:
        key = serialization.load_pem_private_key(kept, None)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Unparsable("a kept CA has no key")
    if key.public_key() != certificate.public_key():
        raise Unparsable("the key of a kept CA is not its certificate's")
    return Authority(key, certificate, lambda: datetime.now(UTC))


def kept_certificate(kept: bytes, lasting: timedelta) -> bytes:
    """The certificate of a kept CA, which must be valid for so long. Raises Unparsable."""
    certificate = _certificate(kept)
    if certificate.not_valid_after_utc - datetime.now(UTC) < lasting:
        raise Unparsable("a kept CA ends too soon")
    return certificate.public_bytes(serialization.Encoding.PEM)


def _certificate(kept: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(kept)
    except ValueError:
        raise Unparsable("a kept CA has no certificate") from None
