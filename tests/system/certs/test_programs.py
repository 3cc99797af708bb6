"""Leaves in front of clients that are programs of their own."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from keyhole.certs.roots import merge_certificates, system_bundle
from keyhole.model.host import Host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.certs.authority import Authority

    Serve = Callable[[ssl.SSLContext], int]

NAME = Host.parse("api.service.example")
LONG = Host.parse("a" * 63 + ".service.example")

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed"
)
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

UNKNOWN_ISSUER = 60
"""curl's exit status for a certificate that it does not believe."""


def run(*words: str, said: str = "", env: dict[str, str] | None = None) -> tuple[int, str]:
    """The status, and all that was printed. The caller's environment may name roots of its own."""
    done = subprocess.run(
        [shutil.which(words[0]) or "", *words[1:]],
        input=said,
        env=env or {},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def curl(port: int, name: str, roots: Path) -> tuple[int, str]:
    return run(
        *("curl", "-sS", "--noproxy", "*", "--cacert", str(roots)),
        *("--resolve", f"{name}:{port}:127.0.0.1", f"https://{name}:{port}/"),
    )


def s_client(port: int, roots: Path, *words: str, said: str = "GET / HTTP/1.1\r\n\r\n") -> str:
    return run(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", NAME.name),
        *("-CAfile", str(roots), "-no-CApath", "-verify_return_error"),
        *("-verify_hostname", NAME.name, *words),
        said=said,
    )[1]


@pytest.fixture
def ca(authority: Authority, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_bytes(authority.pem)
    return path


@needs_curl
@pytest.mark.parametrize("host", [NAME, LONG])
def test_curl_believes_its_own_session_and_no_other(
    authority: Authority, neighbour: Authority, ca: Path, tmp_path: Path, serve: Serve, host: Host
) -> None:
    """I4, I5. Control: with the session's own certificate the same request succeeds."""
    other = tmp_path / "other.pem"
    other.write_bytes(merge_certificates(system_bundle(), neighbour.pem))
    port = serve(authority.leaf(host))
    assert curl(port, host.name, ca) == (0, "hello")
    assert curl(port, host.name, other)[0] == UNKNOWN_ISSUER


@needs_curl
def test_curl_accepts_the_merged_list(authority: Authority, tmp_path: Path, serve: Serve) -> None:
    """What lies over the system's bundle. Control: the system's roots alone do not do."""
    system, both = tmp_path / "system.pem", tmp_path / "both.pem"
    system.write_bytes(system_bundle())
    both.write_bytes(merge_certificates(system_bundle(), authority.pem))
    port = serve(authority.leaf(NAME))
    assert curl(port, NAME.name, both) == (0, "hello")
    assert curl(port, NAME.name, system)[0] == UNKNOWN_ISSUER


@needs_curl
def test_curl_refuses_a_leaf_for_another_name(authority: Authority, ca: Path, serve: Serve) -> None:
    """I4. Control: for its own name it is accepted."""
    port = serve(authority.leaf(NAME))
    assert curl(port, "other.example", ca)[0] == UNKNOWN_ISSUER
    assert curl(port, NAME.name, ca) == (0, "hello")


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_verifies_the_chain_and_gets_no_ticket(
    authority: Authority, ca: Path, serve: Serve, version: str
) -> None:
    """I4. Control: a context that gives tickets is seen to."""
    strict = ("-x509_strict", "-alpn", "h2,http/1.1", "-ign_eof")
    seen = s_client(serve(authority.leaf(NAME)), ca, version, *strict)
    assert "Verification: OK" in seen
    assert "ALPN protocol: http/1.1" in seen
    assert "Server public key is 256 bit" in seen
    assert "Compression: NONE" in seen
    assert "session ticket" not in seen.lower()
    generous = authority._mint(NAME, authority._now()).context
    generous.num_tickets = 2
    generous.options &= ~ssl.OP_NO_TICKET
    assert "session ticket" in s_client(serve(generous), ca, version, *strict).lower()


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_openssl_cannot_have_an_old_protocol(
    authority: Authority, ca: Path, serve: Serve, version: str
) -> None:
    """Control: the same words with TLS 1.2 succeed."""
    port = serve(authority.leaf(NAME))
    weak = ("-cipher", "ALL:@SECLEVEL=0")
    assert "alert protocol version" in s_client(port, ca, version, *weak)
    assert "Verification: OK" in s_client(port, ca, "-tls1_2", *weak)


@needs_openssl
def test_openssl_cannot_renegotiate(authority: Authority, ca: Path, serve: Serve) -> None:
    """I9: handshakes are counted by connection. Control: without the letter it gets its answer."""
    port = serve(authority.leaf(NAME))
    seen = s_client(port, ca, "-tls1_2", said="R\n")
    assert "RENEGOTIATING" in seen
    assert "no renegotiation" in seen
    assert "hello" in s_client(port, ca, "-tls1_2", "-ign_eof")


NODE = """
require("https").get({host: "127.0.0.1", port: process.argv[1], servername: process.argv[2],
  headers: {host: process.argv[2]}}, answer => answer.on("data", data => console.log(`${data}`)))
  .on("error", error => console.log(error.code))
"""


@needs_node
def test_node_adds_the_authority_to_its_own_roots(
    authority: Authority, ca: Path, serve: Serve
) -> None:
    """I4: for this name alone. Control: without the variable it is not believed."""
    port = str(serve(authority.leaf(NAME)))
    trusting = {"NODE_EXTRA_CA_CERTS": str(ca)}
    assert run("node", "-e", NODE, port, NAME.name, env=trusting) == (0, "hello\n")
    wrong = run("node", "-e", NODE, port, "other.example", env=trusting)
    assert wrong == (0, "ERR_TLS_CERT_ALTNAME_INVALID\n")
    assert run("node", "-e", NODE, port, NAME.name)[1] == "UNABLE_TO_VERIFY_LEAF_SIGNATURE\n"
