"""A session's authority and its leaves, as strict clients see them."""

from __future__ import annotations

import os
import pickle
import ssl
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from keyhole.certs.authority import (
    BACKDATED,
    CA_LIFETIME,
    LEAF_LIFETIME,
    MAX_LEAVES,
    MAX_RESUMABLE,
    RENEWED_BEFORE,
    Authority,
    load_chain,
)
from keyhole.model.host import Host
from tests.rigs.certs.handshakes import Clock, shake, strict_client

if TYPE_CHECKING:
    from pathlib import Path

NAME, OTHER = Host.parse("api.service.example"), Host.parse("other.example")
LONG = Host.parse(".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61]))
"""253 characters; a common name has at most 64."""


def shown_leaf(authority: Authority, host: Host) -> x509.Certificate:
    """The certificate that a client is shown."""
    client = strict_client(authority.pem)
    der = shake(authority.leaf(host), client, host.name).getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("host", [NAME, Host.parse("bücher.example"), Host.parse("x"), LONG])
def test_a_strict_client_accepts_a_leaf(
    authority: Authority, host: Host, version: ssl.TLSVersion
) -> None:
    client = strict_client(authority.pem)
    client.minimum_version = client.maximum_version = version
    shake(authority.leaf(host), client, host.name)


def test_the_strict_client_is_strict() -> None:
    """Control of all tests here: a root without key usage, which others accept, is refused."""
    clock = Clock()
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lazy")])
    lazy = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(clock() - BACKDATED)
        .not_valid_after(clock() + CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    authority = Authority(key, lazy, clock)
    client = strict_client(authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="usage"):
        shake(authority.leaf(NAME), client, NAME.name)
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    shake(authority.leaf(NAME), client, NAME.name)


def test_a_leaf_speaks_for_its_own_name_alone(authority: Authority) -> None:
    """I4. Control: for its own name it is accepted."""
    client = strict_client(authority.pem)
    for name in (OTHER.name, f"www.{NAME}", "service.example"):
        with pytest.raises(ssl.SSLCertVerificationError, match="ostname mismatch"):
            shake(authority.leaf(NAME), client, name)
    shake(authority.leaf(NAME), client, NAME.name)


def test_one_sessions_authority_is_nothing_to_another(
    authority: Authority, neighbour: Authority
) -> None:
    """I4, I5: what a sandbox trusts is its own gateway. Control: its own is accepted."""
    client = strict_client(neighbour.pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake(authority.leaf(NAME), client, NAME.name)
    shake(neighbour.leaf(NAME), client, NAME.name)


def test_an_authority_of_the_same_name_is_another_one(authority: Authority) -> None:
    """I4: trust hangs on the key. Control: in its place the real one is accepted."""
    namesake = Authority.create("a1b2c3")
    client = strict_client(authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(namesake.leaf(NAME), client, NAME.name)
    shake(authority.leaf(NAME), client, NAME.name)


def test_a_leaf_cannot_sign(authority: Authority) -> None:
    shown = shown_leaf(authority, NAME)
    basic = shown.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = shown.extensions.get_extension_for_class(x509.KeyUsage)
    extended = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert basic.critical
    assert not basic.value.ca
    assert usage.critical
    assert not usage.value.key_cert_sign
    assert list(extended) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert list(names) == [x509.DNSName(NAME.name)]


def test_the_authority_signs_leaves_and_nothing_longer(authority: Authority) -> None:
    shown = x509.load_pem_x509_certificate(authority.pem)
    basic = shown.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = shown.extensions.get_extension_for_class(x509.KeyUsage)
    assert basic.critical
    assert (basic.value.ca, basic.value.path_length) == (True, 0)
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature


def test_no_two_certificates_share_a_serial_number(authority: Authority) -> None:
    leaves = [shown_leaf(authority, Host.parse(f"n{index}.example")) for index in range(8)]
    serials = {each.serial_number for each in leaves}
    assert len(serials) == len(leaves)
    assert min(serials).bit_length() > 64  # CA/Browser Forum: not to be guessed
    assert {each.subject for each in leaves} != {x509.Name([])}


def test_the_client_gets_http_1_1_or_no_protocol(authority: Authority) -> None:
    for offered, chosen in ((["h2", "http/1.1"], "http/1.1"), (["h2"], None), ([], None)):
        client = strict_client(authority.pem)
        client.set_alpn_protocols(offered)
        agreed = shake(authority.leaf(NAME), client, NAME.name).selected_alpn_protocol()
        assert agreed == chosen


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_ticket_is_given(authority: Authority, version: ssl.TLSVersion) -> None:
    """I4. Control: a context that was left as it is gives one."""
    client = strict_client(authority.pem)
    client.minimum_version = client.maximum_version = version
    ours = shake(authority.leaf(NAME), client, NAME.name).session
    assert ours is not None
    assert not ours.has_ticket
    generous = authority._mint(NAME, authority._now()).context
    generous.num_tickets = 2
    generous.options &= ~ssl.OP_NO_TICKET
    theirs = shake(generous, client, NAME.name).session
    assert theirs is not None
    assert theirs.has_ticket


def test_a_session_of_one_name_is_not_resumed_under_another(authority: Authority) -> None:
    """I4. Control: under its own name OpenSSL resumes it, so the rig can tell."""
    client = strict_client(authority.pem)
    client.check_hostname = False
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    kept = shake(authority.leaf(NAME), client, NAME.name).session
    assert shake(authority.leaf(NAME), client, NAME.name, kept).session_reused
    assert not shake(authority.leaf(OTHER), client, OTHER.name, kept).session_reused


def test_sessions_that_openssl_remembers_are_bounded() -> None:
    """I9. Control: before the bound the context stays the same."""
    authority = Authority.create("bounded")
    client = strict_client(authority.pem)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    first = authority.leaf(NAME)
    for _ in range(MAX_RESUMABLE):
        assert authority.leaf(NAME) is first
        shake(authority.leaf(NAME), client, NAME.name)
    assert first.session_stats()["number"] == MAX_RESUMABLE
    second = authority.leaf(NAME)
    assert second is not first
    shake(second, client, NAME.name)


def test_a_context_is_made_once_and_the_oldest_is_forgotten() -> None:
    """I9: under a wildcard the sandbox chooses the names. Control: what is in use stays."""
    authority = Authority.create("bounded")
    used, unused = authority.leaf(NAME), authority.leaf(OTHER)
    for index in range(MAX_LEAVES - 1):
        authority.leaf(Host.parse(f"n{index}.example"))
        assert authority.leaf(NAME) is used
    assert authority.leaf(OTHER) is not unused
    assert len(authority._leaves) == MAX_LEAVES


def test_a_leaf_is_replaced_before_it_ends_and_never_outlives_its_authority() -> None:
    clock = Clock()
    authority = Authority.create("clocked", now=clock)
    root = x509.load_pem_x509_certificate(authority.pem)
    assert root.not_valid_before_utc == clock() - BACKDATED
    assert root.not_valid_after_utc == clock() + CA_LIFETIME
    first = authority.leaf(NAME)
    assert shown_leaf(authority, NAME).not_valid_before_utc == root.not_valid_before_utc
    clock.move(LEAF_LIFETIME - RENEWED_BEFORE - timedelta(seconds=1))
    assert authority.leaf(NAME) is first
    clock.move(timedelta(seconds=1))
    second = authority.leaf(NAME)
    assert second is not first
    clock.move(CA_LIFETIME - LEAF_LIFETIME)
    last = authority.leaf(NAME)
    assert last is not second
    clock.move(LEAF_LIFETIME - RENEWED_BEFORE)
    assert authority.leaf(NAME) is last


def test_after_its_end_an_authority_is_worth_nothing() -> None:
    """Control: a lifetime that covers the day is accepted."""
    clock = Clock()
    clock.move(-timedelta(days=30))
    ended = Authority.create("ended", now=clock)
    lasting = Authority.create("lasting", timedelta(days=31), clock)
    clock.move(timedelta(days=30))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(ended.leaf(NAME), strict_client(ended.pem), NAME.name)
    shake(lasting.leaf(NAME), strict_client(lasting.pem), NAME.name)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 41, "../x"])
def test_a_session_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="letters, digits and hyphens"):
        Authority.create(name)


def test_openssl_finds_the_authority_in_a_directory(authority: Authority, tmp_path: Path) -> None:
    """Control: under another name it is not found."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(capath=str(tmp_path))
    (tmp_path / "00000000.0").write_bytes(authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(authority.leaf(NAME), client, NAME.name)
    (tmp_path / authority.hashed_name).write_bytes(authority.pem)
    shake(authority.leaf(NAME), client, NAME.name)


def test_what_is_handed_out_holds_no_key(authority: Authority) -> None:
    """I1, and what is kept cannot be printed or pickled. Control: it is a certificate."""
    assert x509.load_pem_x509_certificate(authority.pem).subject
    assert authority.pem.count(b"-----BEGIN ") == 1
    assert "PRIVATE" not in repr(vars(authority))
    with pytest.raises(TypeError):
        pickle.dumps(authority)


class _Reader:
    """A context that keeps what it was given to read open."""

    def load_cert_chain(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.place = os.readlink(path)
        self.seen = os.pread(self.descriptor, 65536, 0)


def test_a_key_is_read_from_memory_and_wiped_there() -> None:
    """I1: whoever still has the memory open finds nothing. Control: OpenSSL found the key."""
    reader = _Reader()
    before = set(os.listdir("/proc/self/fd"))
    load_chain(cast("ssl.SSLContext", reader), b"a certificate and a key")
    assert reader.place.startswith("/memfd:")
    assert reader.seen == b"a certificate and a key"
    assert os.pread(reader.descriptor, 65536, 0) == bytes(len(reader.seen))
    os.close(reader.descriptor)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_chain_that_openssl_refuses_leaves_nothing_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ssl.SSLError):
        load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), b"no certificate")
    assert set(os.listdir("/proc/self/fd")) == before


WATCHED = """
import os, sys
from keyhole.certs.authority import Authority
from keyhole.model.host import Host
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
def watch(event, args):
    made = event in ("os.rename", "os.link", "os.symlink", "os.mkdir")
    if made or event == "open" and (args[2] or 0) & WRITING:
        print(event, args[0])
before = set(os.listdir("/proc/self/fd"))
sys.addaudithook(watch)
authority = Authority.create("watched")
contexts = [authority.leaf(Host.parse(f"n{index}.example")) for index in range(10)]
print(len(contexts), "leaves", set(os.listdir("/proc/self/fd")) == before)
open("control", "w").close()
"""


def test_no_file_is_made(tmp_path: Path) -> None:
    """I1: keys live in memory alone. Control: the watch sees a file that is made."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["10 leaves True", "open control"]
    assert os.listdir(tmp_path) == ["control"]


def test_the_keys_of_authority_and_leaves_are_p256_and_not_the_same(authority: Authority) -> None:
    root = x509.load_pem_x509_certificate(authority.pem)
    leaf = shown_leaf(authority, NAME)
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    for each in (root, leaf):
        key = each.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)
    assert root.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form)
