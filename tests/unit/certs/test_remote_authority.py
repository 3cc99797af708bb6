"""Certificates of remote sandboxes: for one session, for a time, for one kind of key (I5)."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization import PublicFormat as Form

from keyhole.certs.remote_authority import (
    BACKDATED,
    LIFETIME,
    MAX_KEY,
    DoorKey,
    RemoteAuthority,
    fingerprint_of,
    lifetime_of,
)
from keyhole.model.errors import Malformed

NOW = datetime.now(UTC).replace(microsecond=0)


def handshake(authority: RemoteAuthority, client: ssl.SSLContext) -> dict[str, object]:
    """What a gateway sees of a client after one byte each way; raises what the client gets."""
    ours, theirs = socket.socketpair()
    seen: dict[str, object] = {}

    def serve() -> None:
        try:
            with authority.context.wrap_socket(theirs, server_side=True) as sock:
                seen["certificate"] = sock.getpeercert()
                seen["version"] = sock.version()
                sock.sendall(sock.recv(1))
        except (ssl.SSLError, OSError) as error:
            seen["error"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(ours) as sock:
            seen["fingerprint"] = fingerprint_of(sock.getpeercert(binary_form=True) or b"")
            sock.sendall(b"x")
            if sock.recv(1) != b"x":
                raise ConnectionResetError
    finally:
        thread.join()
        for each in (ours, theirs):
            each.close()
    return seen


def test_a_door_is_known_by_its_session_and_the_gateway_by_its_fingerprint() -> None:
    authority, key = RemoteAuthority(), DoorKey()
    issued = authority.issue("s1", key.public, NOW)
    seen = handshake(authority, key.context(issued.pem))
    shown = seen["certificate"]
    assert isinstance(shown, dict)
    assert shown["subject"] == ((("commonName", "s1"),),)
    assert int(shown["serialNumber"], 16) == issued.serial
    assert seen["version"] == "TLSv1.3"
    assert seen["fingerprint"] == authority.fingerprint
    assert RemoteAuthority().fingerprint != authority.fingerprint


def test_without_a_certificate_a_client_is_nobody() -> None:
    assert handshake(RemoteAuthority(), DoorKey().context(None))["certificate"] in (None, {})


@pytest.mark.parametrize("way", ["foreign", "ended", "not begun", "another key", "TLS 1.2"])
def test_what_is_not_this_gateways_is_refused_in_the_handshake_i5(way: str) -> None:
    authority, key = RemoteAuthority(), DoorKey()
    signer = RemoteAuthority() if way == "foreign" else authority
    born = {"ended": NOW - LIFETIME - BACKDATED, "not begun": NOW + 2 * BACKDATED}.get(way, NOW)
    owner = DoorKey() if way == "another key" else key
    issued = signer.issue("s1", owner.public, born)
    with pytest.raises(OSError):  # noqa: PT011 - of OpenSSL, or of the socket
        handshake(authority, _context(key, issued.pem, old=way == "TLS 1.2"))


def _context(key: DoorKey, certificate: str, *, old: bool) -> ssl.SSLContext:
    context = key.context(certificate)
    if old:
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def test_a_certificate_lasts_as_long_as_the_gateway_says() -> None:
    authority, key = RemoteAuthority(), DoorKey()
    issued = authority.issue("s1", key.public, NOW)
    assert (issued.ends, lifetime_of(issued.pem)) == (NOW + LIFETIME, LIFETIME)
    authority.lifetime = timedelta(seconds=4)
    assert lifetime_of(authority.issue("s1", key.public, NOW).pem) == timedelta(seconds=4)


def test_a_certificate_cannot_sign_or_serve_i5() -> None:
    issued = RemoteAuthority().issue("s1", DoorKey().public, NOW)
    found = x509.load_pem_x509_certificate(issued.pem.encode())
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


def encoded(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey) -> str:
    data = key.public_key().public_bytes(Encoding.DER, Form.SubjectPublicKeyInfo)
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "text",
    [
        "", "AAAA", "not base64!", "é", "A" * (MAX_KEY + 1),
        encoded(ec.generate_private_key(ec.SECP384R1())),
        encoded(ed25519.Ed25519PrivateKey.generate()),
        encoded(rsa.generate_private_key(65537, 2048)),
    ],
    ids=["nothing", "no key", "no base64", "no ASCII", "long", "P-384", "Ed25519", "RSA"],
)  # fmt: skip
def test_only_a_key_of_p256_is_signed_i9(text: str) -> None:
    with pytest.raises(Malformed):
        RemoteAuthority().issue("s1", text, NOW)


def test_a_doors_key_is_handed_to_its_carrier_whole() -> None:
    key = DoorKey()
    assert DoorKey(key.private_pem()).public == key.public
    other = rsa.generate_private_key(65537, 2048)
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(TypeError):
        DoorKey(pem)
