"""The certificates of remote sandboxes: the gateway's authority, and a remote door's key.

The remote listener (`app/remote/listener.py`) has the authority, in memory and for as long as it
lives: no certificate outlives its gateway. A certificate is of one session, for an hour. The door
knows the gateway by the fingerprint of its certificate, which came with the invitation, so no name
and no other authority can stand in for it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from keyhole.certs.authority import load_chain
from keyhole.model.errors import Malformed

LIFETIME = timedelta(hours=1)
"""How long a session's certificate is valid, unless `keyhole up` says a shorter time; the door
renews it after half of that."""

GATEWAY_LIFETIME = timedelta(days=3650)
"""Of the gateway's own certificate: it is known by its fingerprint, and gone with the gateway."""

BACKDATED = timedelta(minutes=5)
"""Certificates begin this long ago, for clocks that differ."""

FINGERPRINT = 16
"""Bytes of the SHA-256 of the gateway's certificate: nobody makes another with the same."""

MAX_KEY = 256
"""Characters of a public key in base64: one of P-256 has 124."""


class IssuedCertificate(Struct, frozen=True):
    """A session's certificate."""

    pem: str
    serial: int
    ends: datetime


class RemoteAuthority:
    """Signs for remote doors."""

    def __init__(self) -> None:
        self.lifetime = LIFETIME
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Keyhole")
        self._own = self._sign(self._name, self._key.public_key(), GATEWAY_LIFETIME, ca=True)
        server = ec.generate_private_key(ec.SECP256R1())
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        # The same words at every gateway: the port tells nothing of its host.
        certificate = self._sign(
            _name("gateway"), server.public_key(), GATEWAY_LIFETIME, usage=usage
        )
        self.fingerprint = fingerprint_of(_der(certificate))
        self.context = self._server_context(certificate, server)

    def _server_context(
        self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a resumed session would not show its certificate again
        # Without a certificate, a client may enrol and do nothing else.
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=_pem(self._own))
        load_chain(context, _pem(certificate).encode() + _private(key))
        return context

    def issue(self, session: str, public_key: str, now: datetime) -> IssuedCertificate:
        """A certificate for a session, of a door's public key. Raises Malformed."""
        key = _read_public(public_key)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        made = self._sign(_name(session), key, self.lifetime, usage=usage, now=now)
        return IssuedCertificate(_pem(made), made.serial_number, made.not_valid_after_utc)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        lifetime: timedelta,
        *,
        ca: bool = False,
        usage: x509.ObjectIdentifier | None = None,
        now: datetime | None = None,
    ) -> x509.Certificate:
        born = now or datetime.now(UTC)
        draft = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(born - BACKDATED)
            .not_valid_after(born + lifetime)
            .add_extension(
                x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True
            )
        )
        if usage is not None:
            draft = draft.add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
        return draft.sign(self._key, hashes.SHA256())


class DoorKey:
    """The key of a remote door, in its memory alone."""

    def __init__(self, pem: bytes | None = None) -> None:
        """A new one, or one that another process of the door had."""
        if pem is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
            return
        key = serialization.load_pem_private_key(pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("a door's key is of P-256")
        self._key = key

    @property
    def public(self) -> str:
        """The public key, as an authority takes it."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        data = self._key.public_key().public_bytes(serialization.Encoding.DER, form)
        return base64.b64encode(data).decode("ascii")

    def private_pem(self) -> bytes:
        """The key, for the door's own carrier."""
        return _private(self._key)

    def context(self, certificate: str | None) -> ssl.SSLContext:
        """A client's context; without a certificate, for enrolment.

        The caller compares the fingerprint of the gateway's certificate before it sends anything.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Known by its fingerprint alone, which is stricter than any authority.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            load_chain(context, certificate.encode() + _private(self._key))
        return context


def lifetime_of(certificate: str) -> timedelta:
    """How long a session's certificate was made for, whatever this machine's clock says. Raises
    ValueError."""
    found = x509.load_pem_x509_certificate(certificate.encode())
    return found.not_valid_after_utc - found.not_valid_before_utc - BACKDATED


def fingerprint_of(der: bytes) -> bytes:
    """The fingerprint of a gateway's certificate."""
    return hashlib.sha256(der).digest()[:FINGERPRINT]


def _read_public(text: str) -> ec.EllipticCurvePublicKey:
    if len(text) > MAX_KEY:
        raise Malformed("a public key is too long")
    try:
        key = serialization.load_der_public_key(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error, TypeError):
        raise Malformed("a public key that is none") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Malformed("a public key of another kind than P-256")
    return key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *form)
