"""The certificate with which admission serves the API server, kept as a Secret of the cluster.

The first process makes it and the others read it. Each certificate has a CA of its own, whose key
is forgotten; the CA of the one before stays trusted, so that processes can change one after
another. `webhook_trust.py` tells the API server the CAs.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from lightkube import codecs
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Secret as SecretResource
from msgspec import Struct

from keyhole.app.kube.resources import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightkube import AsyncClient

LIFETIME = datetime.timedelta(days=365)
RENEWED_AT = 1 / 3
"""The part of its life that a certificate has left when it is renewed: four months of a year."""

MAX_AUTHORITIES = 2
"""CAs that the API server is told: this certificate's, and that of the one before."""

_CONFLICT = 409
_KEYS = ("ca.crt", "tls.crt", "tls.key")


class ServingCertificate(Struct, frozen=True):
    """A certificate, its key and the CAs to trust, the one that signed it first; all in PEM."""

    authorities: bytes
    certificate: bytes
    key: bytes
    version: str = ""
    """The version of the Secret that it was read from."""

    @property
    def left(self) -> datetime.timedelta:
        """How long it is valid; negative: it has ended, or cannot be read."""
        try:
            authorities = x509.load_pem_x509_certificates(self.authorities)
            serialization.load_pem_private_key(self.key, None)
            read = [x509.load_pem_x509_certificate(self.certificate), authorities[0]]
        except (ValueError, TypeError, IndexError):
            return -LIFETIME
        ends = min(each.not_valid_after_utc for each in read)
        return ends - datetime.datetime.now(datetime.UTC)


class CertificateSecret(Struct, frozen=True):
    """The Secret, and the certificate that belongs into it."""

    namespace: str
    name: str
    names: tuple[str, ...]
    """Names and addresses by which the API server knows admission."""
    lifetime: datetime.timedelta = LIFETIME

    async def read(self, client: AsyncClient) -> ServingCertificate | None:
        """The certificate that is there now, whatever its state."""
        try:
            secret = await client.get(SecretResource, self.name, namespace=self.namespace)
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise
            return None
        data = secret.data or {}
        version = (secret.metadata.resourceVersion if secret.metadata else None) or ""
        try:
            authorities, chain, key = (base64.b64decode(data.get(each, "")) for each in _KEYS)
        except binascii.Error:
            authorities, chain, key = b"", b"", b""
        return ServingCertificate(authorities, chain, key, version)

    @property
    def renewed_with(self) -> datetime.timedelta:
        """A certificate is renewed when it has less than this left."""
        return self.lifetime * RENEWED_AT

    async def valid(self, client: AsyncClient, least: datetime.timedelta) -> ServingCertificate:
        """A certificate with at least this time left; made where there is none."""
        while True:
            found = await self.read(client)
            if found is not None and found.left > least:
                return found
            await self._replace(client, found)

    async def _replace(self, client: AsyncClient, found: ServingCertificate | None) -> None:
        """Write a new certificate, unless another process was faster; the caller reads again."""
        made = make_certificate(self.names, self.lifetime, found)
        values = zip(_KEYS, (made.authorities, made.certificate, made.key), strict=True)
        metadata = {"name": self.name, "namespace": self.namespace}
        if found is not None:
            # Two processes that replace one certificate: the second must not replace the first's,
            # which is served already.
            metadata["resourceVersion"] = found.version
        secret = codecs.from_dict(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": "kubernetes.io/tls",
                "metadata": metadata,
                "data": {key: base64.b64encode(value).decode("ascii") for key, value in values},
            }
        )
        try:
            await (client.create(secret) if found is None else client.replace(secret))
        except ApiError as error:
            if error.status.code not in (_CONFLICT, NOT_FOUND):
                raise


def make_certificate(
    names: Sequence[str],
    lifetime: datetime.timedelta = LIFETIME,
    before: ServingCertificate | None = None,
) -> ServingCertificate:
    """A CA that signs one certificate, and whose key is then forgotten. The CA of the certificate
    before stays trusted while that is valid."""
    now = datetime.datetime.now(datetime.UTC)
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Keyhole's admission")])

    def build(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + lifetime)
        )

    # Two CAs of one name are trusted at once: a verifier tells them apart by the key's identifier.
    signer = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    ca = (
        build(issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signer, critical=False)
    )
    leaf = (
        build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False
        )
    )
    authorities = [ca.sign(authority, hashes.SHA256())]
    if before is not None and before.left > datetime.timedelta():
        authorities += x509.load_pem_x509_certificates(before.authorities)
    pem = serialization.Encoding.PEM
    return ServingCertificate(
        b"".join(each.public_bytes(pem) for each in authorities[:MAX_AUTHORITIES]),
        leaf.sign(authority, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
