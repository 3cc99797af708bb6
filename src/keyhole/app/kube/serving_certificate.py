"""The certificate with which admission serves the API server.

Kept as a Secret of the cluster, which the first process makes and the others read; the API server
is told its CA. Only the API server connects, and it checks the name of the service.
"""

from __future__ import annotations

import base64
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightkube import AsyncClient

LIFETIME = datetime.timedelta(days=365)
RENEWED_BEFORE = datetime.timedelta(days=60)
"""How long before its end it is replaced, when a process starts."""

_CONFLICT, _MISSING = 409, 404


class ServingCertificate(Struct, frozen=True):
    """A certificate, its key and the CA that signed it, in PEM."""

    authority: bytes
    certificate: bytes
    key: bytes

    @property
    def is_old(self) -> bool:
        """Whether it ends soon."""
        ends = x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc
        return ends - datetime.datetime.now(datetime.UTC) < RENEWED_BEFORE


async def serving_certificate(
    client: AsyncClient, namespace: str, name: str, names: Sequence[str]
) -> ServingCertificate:
    """The cluster's certificate for admission; made where there is none, or only an old one."""
    while True:
        found = await _read(client, namespace, name)
        if found is not None and not found.is_old:
            return found
        made = make_certificate(names)
        try:
            await _write(client, namespace, name, made, replace=found is not None)
        except ApiError as error:
            if error.status.code != _CONFLICT:
                raise
        # Read again: another process may have been first.


async def _read(client: AsyncClient, namespace: str, name: str) -> ServingCertificate | None:
    try:
        secret = await client.get(SecretResource, name, namespace=namespace)
    except ApiError as error:
        if error.status.code != _MISSING:
            raise
        return None
    data = secret.data or {}
    return ServingCertificate(
        *(base64.b64decode(data.get(key, "")) for key in ("ca.crt", "tls.crt", "tls.key"))
    )


async def _write(
    client: AsyncClient, namespace: str, name: str, made: ServingCertificate, *, replace: bool
) -> None:
    values = zip(
        ("ca.crt", "tls.crt", "tls.key"), (made.authority, made.certificate, made.key), strict=True
    )
    secret = codecs.from_dict(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": namespace},
            "data": {key: base64.b64encode(value).decode("ascii") for key, value in values},
        }
    )
    if replace:
        await client.replace(secret)
    else:
        await client.create(secret)


def make_certificate(names: Sequence[str]) -> ServingCertificate:
    """A CA that signs one certificate, and whose key is then forgotten."""
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
            .not_valid_after(now + LIFETIME)
        )

    ca = build(issuer, authority.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    leaf = (
        build(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])]), key.public_key())
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    pem = serialization.Encoding.PEM
    return ServingCertificate(
        ca.sign(authority, hashes.SHA256()).public_bytes(pem),
        leaf.sign(authority, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
