"""A session's certificate authority, and the server contexts for the names it intercepts.

Made by `app` when a session starts; the gateway calls `leaf` for a name that was judged to be a
service's. Private keys live in this process's memory and nowhere else: `pem` is the certificate
alone, and no method returns a key. (`kept_authority.py` is the exception, for sandboxes that
outlive a gateway.) This module does not decide which name is intercepted.

The shape is the one that every client tried accepts, Python 3.13's strict checks among them (RFC
5280): a CA with key usage and subject key identifier, leaves with an authority key identifier.
There are no name constraints: the key signs only what the gateway asks for and only this session's
sandbox trusts it, the list would show the policy to anyone who reads the certificate, a name could
not be added while the session lives, and some clients do not know the extension, which must be
critical.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.model.host import Host

CA_LIFETIME = timedelta(days=7)
"""A session lives a day unless its policy says otherwise; a CA that was copied out of a sandbox and
trusted elsewhere should not be trusted for long."""

LEAF_LIFETIME = timedelta(days=1)
"""Far below what clients allow, and so long that hardly any session needs a second one."""

RENEWED_BEFORE = timedelta(hours=1)
"""How long before its end a leaf is replaced: no handshake may meet one that has just expired."""

BACKDATED = timedelta(hours=1)
"""Certificates begin this long ago, so that a clock that is set back does not invalidate them."""

MAX_LEAVES = 256
"""Server contexts kept, about 20 KiB each. Under a wildcard the sandbox chooses the names (I9);
one that was dropped is minted again in a millisecond."""

MAX_RESUMABLE = 32
"""TLS 1.2 sessions, a KiB each, that OpenSSL may remember in one context before it is replaced. By
itself it would keep 20,480 for each name and for two hours, and cannot be told otherwise (I9)."""

_SESSION_NAME = re.compile(r"[A-Za-z0-9-]{1,40}")
"""The subject holds at most 64 characters (RFC 5280, ub-common-name), with the words before it."""

_LEAF_SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "intercepted by Keyhole")])
"""The same for all: a host name may be longer than a common name can be, so clients look at the
alternative name alone. Not empty, since then the alternative name would have to be critical."""


class _Leaf(Struct, frozen=True):
    context: ssl.SSLContext
    renew_at: datetime

    def is_full(self) -> bool:
        return self.context.session_stats()["number"] >= MAX_RESUMABLE


class Authority:
    """Signs for one session. Make it with `create`; when it is dropped, so are its keys."""

    def __init__(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        now: Callable[[], datetime],
    ) -> None:
        self._key = key
        self._certificate = certificate
        self._now = now
        self._issuer_id = _key_identifier(certificate)
        # One key for all leaves: a new one costs as much as a signature and would add nothing,
        # since an attacker who has one of them has this process.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_id = x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key())
        self._leaves: OrderedDict[Host, _Leaf] = OrderedDict()
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def create(
        cls,
        name: str,
        lifetime: timedelta = CA_LIFETIME,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> Authority:
        """Make an authority with new keys for the session of that name.

        The lifetime must cover the session's: no certificate is valid after it.
        """
        return cls(*make_root(name, lifetime, now()), now)

    @property
    def hashed_name(self) -> str:
        """The hash by which OpenSSL finds this root in a directory, as in `1f2e3d4c.0`.

        SHA-1 of the subject's canonical form (lower case, UTF-8, without the outer header), its
        first four bytes as a little-endian number.
        """
        common = self._certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        lowered = _subject(str(common).lower()).public_bytes()
        header = 2  # tag and a length below 128
        digest = hashlib.sha1(lowered[header:], usedforsecurity=False).digest()
        return f"{int.from_bytes(digest[:4], 'little'):08x}.0"

    def leaf(self, host: Host) -> ssl.SSLContext:
        """The server's context for exactly this name; made once, then cached.

        One context a name, because OpenSSL resumes a session within a context whatever name the
        client asks for the second time (I4).
        """
        known = self._leaves.get(host)
        now = self._now()
        if known is not None and now < known.renew_at and not known.is_full():
            self._leaves.move_to_end(host)
            return known.context
        self._leaves[host] = made = self._mint(host, now)
        self._leaves.move_to_end(host)
        if len(self._leaves) > MAX_LEAVES:
            self._leaves.popitem(last=False)
        return made.context

    def _mint(self, host: Host, now: datetime) -> _Leaf:
        first = max(now - BACKDATED, self._certificate.not_valid_before_utc)
        last = min(now + LEAF_LIFETIME, self._certificate.not_valid_after_utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_LEAF_SUBJECT)
            .issuer_name(self._certificate.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(first, last))
            .not_valid_after(last)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host.name)]), critical=False)
            .add_extension(self._leaf_id, critical=False)
            .add_extension(self._issuer_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        context = _server_context(certificate, self._leaf_key)
        # A leaf that ends with its authority is the last one: minting again would gain nothing.
        final = last == self._certificate.not_valid_after_utc
        return _Leaf(context, datetime.max.replace(tzinfo=UTC) if final else last - RENEWED_BEFORE)


def make_root(
    name: str, lifetime: timedelta, born: datetime
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A new key, and its own certificate as the CA of the session of that name."""
    if not _SESSION_NAME.fullmatch(name):
        raise ValueError("a session's name is at most 40 letters, digits and hyphens")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"Keyhole session {name}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(born - BACKDATED)
        .not_valid_after(born + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _server_context(
    certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # No tickets in either version. No renegotiation: it would change a connection's terms half-way,
    # and let a client cause handshakes without opening connections (I9).
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Serialised each time, so that no readable form of the key stays in memory.
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    load_chain(context, certificate.public_bytes(pem) + key.private_bytes(pem, *form))
    return context


def load_chain(context: ssl.SSLContext, chain: bytes) -> None:
    """Load certificate and key by way of a memory file, since `ssl` reads only from a path."""
    descriptor = os.memfd_create("keyhole-leaf", os.MFD_CLOEXEC)
    try:
        os.pwrite(descriptor, chain, 0)
        try:
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            # A child that was forked meanwhile has the descriptor until it executes something.
            os.pwrite(descriptor, bytes(len(chain)), 0)
    finally:
        os.close(descriptor)


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_identifier(certificate: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    own = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def _usage(*, certificates: bool) -> x509.KeyUsage:
    """Key usage: sign certificates, or sign handshakes; never both."""
    return x509.KeyUsage(
        digital_signature=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
