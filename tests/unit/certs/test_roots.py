"""Which roots are trusted, and how origins are verified by them."""

from __future__ import annotations

import base64
import os
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from keyhole.certs import roots
from keyhole.certs.roots import (
    BUNDLES,
    MAX_BUNDLE,
    certificates,
    find_bundle,
    merge_certificates,
    system_bundle,
    upstream_context,
)
from keyhole.model.errors import ResourceUnusable
from keyhole.model.host import Host
from tests.rigs.certs.handshakes import shake

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.certs.authority import Authority

NAME = "origin.example"
COMPILED = ssl.get_default_verify_paths()


@pytest.fixture(scope="module")
def public() -> trustme.CA:
    """Stands for what the host trusts."""
    return trustme.CA()


@pytest.fixture(scope="module")
def corporate() -> trustme.CA:
    """Stands for `[upstream] ca_file`."""
    return trustme.CA()


def pem(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def origin(
    issuer: trustme.CA, name: str, common_name: str | None = None, not_after: datetime | None = None
) -> ssl.SSLContext:
    """A server whose certificate this issuer signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf = issuer.issue_cert(name, common_name=common_name, not_after=not_after)
    leaf.configure_cert(context)
    return context


def place(root: Path, name: str, data: bytes) -> Path:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# ── where they are ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*BUNDLES, COMPILED.openssl_cafile])
def test_each_distributions_list_is_found(tmp_path: Path, public: trustme.CA, name: str) -> None:
    assert find_bundle(tmp_path) is None
    path = place(tmp_path, name, pem(public))
    assert find_bundle(tmp_path) == path
    assert system_bundle(path) == merge_certificates(pem(public))


def test_a_list_that_is_empty_is_passed_over(tmp_path: Path, public: trustme.CA) -> None:
    """A package that was installed half leaves one."""
    place(tmp_path, BUNDLES[0], b"")
    assert find_bundle(tmp_path) is None
    path = place(tmp_path, BUNDLES[-1], pem(public))
    assert find_bundle(tmp_path) == path


def test_a_directory_does_where_there_is_no_list(tmp_path: Path, public: trustme.CA) -> None:
    directory = tmp_path / COMPILED.openssl_capath.lstrip("/")
    directory.mkdir(parents=True)
    assert find_bundle(tmp_path) is None
    second = trustme.CA()
    for name, data in (
        ("0a1b2c3d.0", pem(public)),
        ("0a1b2c3d.1", pem(second)),
        ("other.pem", pem(trustme.CA())),
        ("0a1b2c3d.r0", b"a revocation list"),
    ):
        (directory / name).write_bytes(data)
    (directory / "ffffffff.0").symlink_to("nowhere")
    assert find_bundle(tmp_path) == directory
    assert system_bundle(directory) == merge_certificates(pem(public), pem(second))


def test_this_hosts_roots_are_found_and_can_be_used() -> None:
    if find_bundle() is None:
        pytest.skip("no roots on this host")
    assert len(certificates(system_bundle())) > 1
    assert upstream_context().cert_store_stats()["x509_ca"] > 1


def test_a_place_that_holds_no_roots_is_said_to(tmp_path: Path) -> None:
    """Whatever is wrong with it, the message names the file."""
    place(tmp_path, "text", b"-----BEGIN TRUSTED CERTIFICATE-----")
    place(tmp_path, "broken", b"-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----")
    place(tmp_path, "large", bytes(MAX_BUNDLE + 1))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name, why in (
        ("missing", "No such file"),
        ("text/below", "Not a directory"),
        ("text", "no certificate in it"),
        ("broken", "not base64"),
        ("large", "more than 8 MiB"),
        ("pipe", "not a regular file"),
        ("directory", "no certificate in it"),
    ):
        with pytest.raises(ResourceUnusable, match=f"/{name}: .*{why}"):
            system_bundle(tmp_path / name)


def test_a_host_without_roots_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "find_bundle", lambda: None)
    with pytest.raises(ResourceUnusable, match="install ca-certificates"):
        system_bundle()


def test_the_environment_has_no_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, corporate: trustme.CA
) -> None:
    """I4, I11: a variable must not add a root. Control: Python's own context obeys it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(place(tmp_path, "added.pem", pem(corporate))))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    server = origin(corporate, NAME)
    shake(server, ssl.create_default_context(), NAME)
    assert certificates(pem(corporate))[0] not in certificates(system_bundle())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, upstream_context(), NAME)


def test_no_variable_has_the_keys_of_connections_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, corporate: trustme.CA
) -> None:
    """I1: the injected credential could be read from a capture. Control: Python's own does it."""
    log = tmp_path / "keys"
    monkeypatch.setenv("SSLKEYLOGFILE", str(log))
    server = origin(corporate, NAME)
    shake(server, upstream_context(pem(corporate), pem(corporate)), NAME)
    assert not log.exists()
    control = ssl.create_default_context(cadata=pem(corporate).decode())
    shake(server, control, NAME)
    assert log.read_text()


# ── one clean list ────────────────────────────────────────────────────────────────────────────────


def test_a_certificate_stands_once_however_it_was_written(
    public: trustme.CA, corporate: trustme.CA
) -> None:
    one, two = pem(public), pem(corporate)
    der = certificates(one)[0]
    wide = b"-----BEGIN CERTIFICATE-----" + base64.b64encode(der) + b"-----END CERTIFICATE-----"
    crlf = one.replace(b"\n", b"\r\n")
    clean = merge_certificates(one, two)
    assert merge_certificates(b"# a comment\n" + one + b"\xff\xfe", wide + crlf, two + one) == clean
    assert clean.count(b"BEGIN CERTIFICATE") == 2
    assert max(map(len, clean.splitlines())) == 64
    assert ssl.PEM_cert_to_DER_cert(clean.decode().partition("-----END")[0] + ssl.PEM_FOOTER) == der


def test_a_private_key_in_the_same_file_goes_no_further(corporate: trustme.CA) -> None:
    """I1: the list is shown in the sandbox. Control: the certificate beside it is."""
    data = corporate.private_key_pem.bytes() + pem(corporate)
    assert b"PRIVATE KEY" in data
    assert merge_certificates(data) == merge_certificates(pem(corporate)) != b""


@given(st.binary() | st.text("-BEGINCRTFAD=\n \t0").map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    wrapped = b"-----BEGIN CERTIFICATE-----" + data + b"-----END CERTIFICATE-----"
    for each in (data, wrapped):
        try:
            clean = merge_certificates(each)
        except ResourceUnusable:
            continue
        assert merge_certificates(clean) == clean


# ── verifying origins ─────────────────────────────────────────────────────────────────────────────


def test_an_origin_is_believed_by_system_roots_and_by_added_ones(
    public: trustme.CA, corporate: trustme.CA
) -> None:
    """I4. Control of the refusal: with the root added, the same origin is believed."""
    system = pem(public)
    shake(origin(public, NAME), upstream_context(None, system), NAME)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake(origin(corporate, NAME), upstream_context(None, system), NAME)
    for issuer in (public, corporate):
        shake(origin(issuer, NAME), upstream_context(pem(corporate), system), NAME)


def test_an_origin_must_prove_the_name(public: trustme.CA) -> None:
    """I4. Control: the name that it can prove, also by a wildcard."""
    client = upstream_context(None, pem(public))
    with pytest.raises(ssl.SSLCertVerificationError, match="ostname mismatch"):
        shake(origin(public, "evil.example"), client, NAME)
    shake(origin(public, NAME), client, NAME)
    shake(origin(public, f"*.{NAME}"), client, f"api.{NAME}")


def test_an_origin_whose_certificate_has_ended_is_refused(public: trustme.CA) -> None:
    """I4. Control: with an hour left it is accepted."""
    client, hour = upstream_context(None, pem(public)), timedelta(hours=1)
    now = datetime.now(UTC)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(origin(public, NAME, not_after=now - hour), client, NAME)
    shake(origin(public, NAME, not_after=now + hour), client, NAME)


def test_a_common_name_is_no_identity(public: trustme.CA) -> None:
    """I4. Control: the same certificate proves its alternative name."""
    server = origin(public, "mail@example.org", common_name=NAME)
    client = upstream_context(None, pem(public))
    with pytest.raises(ssl.SSLCertVerificationError, match="ostname mismatch"):
        shake(server, client, NAME)
    shake(origin(public, NAME, common_name="something else"), client, NAME)


def test_a_session_s_own_authority_is_not_trusted_upstream(
    authority: Authority, public: trustme.CA
) -> None:
    """I4: the sandbox trusts it, the gateway does not. Control: a real origin is believed."""
    client = upstream_context(None, pem(public))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(authority.leaf(Host.parse(NAME)), client, NAME)
    shake(origin(public, NAME), client, NAME)


def test_an_intermediate_may_be_what_is_trusted(public: trustme.CA, corporate: trustme.CA) -> None:
    """Control: without it on the list the origin is not believed."""
    below = corporate.create_child_ca()
    server = origin(below, NAME)
    shake(server, upstream_context(pem(below), pem(public)), NAME)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, upstream_context(None, pem(public)), NAME)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_an_origin_with_an_old_protocol_is_refused(public: trustme.CA) -> None:
    """Control: with TLS 1.2 it is accepted."""
    server = origin(public, NAME)
    server.set_ciphers("ALL:@SECLEVEL=0")
    server.minimum_version = server.maximum_version = ssl.TLSVersion.TLSv1_1
    client = upstream_context(None, pem(public))
    with pytest.raises(ssl.SSLError, match=r"(?i)version|unsupported|no.protocols"):
        shake(server, client, NAME)
    server.maximum_version = server.minimum_version = ssl.TLSVersion.TLSv1_2
    shake(server, client, NAME)


def test_an_origin_is_asked_for_http_1_1(public: trustme.CA) -> None:
    server = origin(public, NAME)
    server.set_alpn_protocols(["h2", "http/1.1"])
    done = shake(server, upstream_context(None, pem(public)), NAME)
    assert done.selected_alpn_protocol() == "http/1.1"


def test_the_same_lists_are_parsed_once(public: trustme.CA, corporate: trustme.CA) -> None:
    system = pem(public)
    assert upstream_context(None, system) is upstream_context(None, bytes(bytearray(system)))
    assert upstream_context(None, system) is not upstream_context(pem(corporate), system)


def test_a_list_that_cannot_be_used_is_refused_with_whose_it_is(public: trustme.CA) -> None:
    """I3: nothing is verified against half a list. Control: a whole one is taken."""
    good = pem(public)
    broken = good.replace(b"\nMII", b"\nAAA", 1)
    assert broken != good
    for bad in (
        b"",
        b"text",
        broken,
        good + b"-----BEGIN CERTIFICATE-----A-----END CERTIFICATE-----",
    ):
        with pytest.raises(ResourceUnusable, match="the added roots: "):
            upstream_context(bad, good)
        with pytest.raises(ResourceUnusable, match="the host's roots: "):
            upstream_context(good, bad)
    upstream_context(good, good)
