"""The trust store, and a JVM that reads it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

from keyhole.certs.roots import certificates, merge_certificates, system_bundle
from keyhole.certs.truststore import PASSWORD, java_truststore
from keyhole.model.errors import ResourceUnusable
from keyhole.model.host import Host
from tests.rigs.certs import handshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from keyhole.certs.authority import Authority

    Serve = Callable[[ssl.SSLContext], int]

NAME = Host.parse("api.service.example")
REFUSED = "SSLHandshakeException"
NO_CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nMAMBAf8=\n-----END CERTIFICATE-----\n"
TRUSTED_ENTRY = bytes.fromhex("060c6086480186f966adca7b0101")
"""2.16.840.1.113894.746875.1.1 in DER: the attribute by which a JVM knows a trusted entry."""


def written_by_library(bundle: bytes) -> bytes:
    """The same store by `cryptography`, with the MAC that it always adds taken away."""
    made = [
        pkcs12.PKCS12Certificate(
            x509.load_der_x509_certificate(der), hashlib.sha256(der).hexdigest()[:32].encode()
        )
        for der in certificates(bundle)
    ]
    sealed = pkcs12.serialize_java_truststore(made, NoEncryption())
    # The MAC is the last element of the outer one: a SEQUENCE { SEQUENCE { … } … }.
    start = sealed.rindex(bytes.fromhex("0609608648016503040201"))  # its SHA-256
    while sealed[start] != 0x30 or start + 2 + sealed[start + 1] != len(sealed):
        start -= 1
    size = int.from_bytes(sealed[2 : 2 + (sealed[1] & 0x7F)])
    body = sealed[len(sealed) - size : start]
    length = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    return b"\x30" + bytes([0x80 | len(length)]) + length + body


def test_it_is_byte_for_byte_what_a_library_writes() -> None:
    few = b"".join(trustme.CA().cert_pem.bytes() for _ in range(3))
    assert java_truststore(few) == written_by_library(few)


@dataclass(frozen=True)
class Jvm:
    """Runs Java with a table of hosts of its own."""

    classes: Path

    def ask(self, port: int, *options: str) -> str:
        """What a program prints that asks for the page."""
        return self.run(
            *("java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", str(self.classes)),
            f"-Djdk.net.hosts.file={self.classes / 'hosts'}",
            *(*options, "Ask", f"https://{NAME}:{port}/"),
        )

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [shutil.which(words[0]) or "", *words[1:]],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout.strip()


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Jvm:
    if not all(map(shutil.which, ("java", "javac", "keytool"))):
        pytest.skip("no JDK on this host")
    made = Jvm(tmp_path_factory.mktemp("classes"))
    (made.classes / "hosts").write_text(f"127.0.0.1 {NAME}\n")
    source = Path(handshakes.__file__).with_name("Ask.java")
    assert made.run("javac", "-proc:none", "-d", str(made.classes), str(source)) == ""
    return made


def stored(path: Path, *bundles: bytes) -> str:
    path.write_bytes(java_truststore(merge_certificates(*bundles)))
    return f"-Djavax.net.ssl.trustStore={path}"


@pytest.mark.parametrize("password", [(), (f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",)])
def test_a_jvm_believes_its_own_session_and_no_other(
    authority: Authority,
    neighbour: Authority,
    jvm: Jvm,
    serve: Serve,
    tmp_path: Path,
    password: tuple[str, ...],
) -> None:
    """I4, I5, with a password and without. Control: its own session's store is believed."""
    port = serve(authority.leaf(NAME))
    own = stored(tmp_path / "own.p12", system_bundle(), authority.pem)
    other = stored(tmp_path / "other.p12", system_bundle(), neighbour.pem)
    assert jvm.ask(port, own, *password) == "hello"
    assert jvm.ask(port, other, *password) == REFUSED


def test_a_jvm_without_the_store_does_not_believe_us(
    authority: Authority, jvm: Jvm, serve: Serve, tmp_path: Path
) -> None:
    """Nor for another name with it (I4). Control: the store, and the name."""
    store = stored(tmp_path / "own.p12", authority.pem)
    port = serve(authority.leaf(NAME))
    assert jvm.ask(port) == REFUSED
    assert jvm.ask(serve(authority.leaf(Host.parse("other.example"))), store) == REFUSED
    assert jvm.ask(port, store) == "hello"


@pytest.mark.parametrize("password", [(), ("-storepass", PASSWORD)])
def test_keytool_lists_every_root_as_trusted(
    authority: Authority, jvm: Jvm, tmp_path: Path, password: tuple[str, ...]
) -> None:
    path = tmp_path / "roots.p12"
    stored(path, system_bundle(), authority.pem)
    wanted = len(certificates(system_bundle())) + 1
    said = jvm.run("keytool", "-list", "-keystore", str(path), *password)
    assert f"contains {wanted} entries" in said
    assert said.count("trustedCertEntry") == wanted


def test_a_store_holds_each_root_in_the_clear_and_is_the_same_every_time(
    authority: Authority,
) -> None:
    bundle = merge_certificates(system_bundle(), authority.pem)
    store = java_truststore(bundle)
    ders = certificates(bundle)
    assert all(der in store for der in ders)
    assert store.count(TRUSTED_ENTRY) == len(ders)
    assert java_truststore(bundle + bundle) == store
    assert b"PRIVATE" not in store


def test_an_odd_root_does_not_take_away_the_rest(authority: Authority) -> None:
    """Control: it was there, and the rest alone gives the same store."""
    mixed = merge_certificates(NO_CERTIFICATE, authority.pem)
    assert len(certificates(mixed)) == 2
    assert java_truststore(mixed) == java_truststore(authority.pem)


def test_a_store_of_nothing_is_refused() -> None:
    """I3: a JVM that trusts nobody fails in words that no one understands."""
    for nothing in (b"", NO_CERTIFICATE):
        with pytest.raises(ResourceUnusable):
            java_truststore(nothing)
    assert java_truststore(trustme.CA().cert_pem.bytes())
