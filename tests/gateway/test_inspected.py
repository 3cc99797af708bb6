"""Requests to a service's host: judged, dressed, answered and scrubbed (I1, I4, I6, I7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from keyhole.certs.authority import Authority
from tests.gateway.origins import Origin
from tests.gateway.rig import Rig, Services

if TYPE_CHECKING:
    import socket
    import ssl
    from pathlib import Path

    import trustme

    from tests.gateway.namespace import Namespace

Make = Callable[..., Origin]
SECRET = "sk-real-0123456789abcdefghij"
STAND_IN = "mk-placeholder-0123456789abc"


def echo_head(sock: socket.socket) -> None:
    """Answer each request with its own head as the body."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            data = sock.recv(65536)
            if not data:
                return
            buffer += data
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))


@pytest.fixture
def services(authority: trustme.CA) -> Services:
    return Services(
        {"own": SECRET}, {"own": STAND_IN}, Authority.create("t"), authority.cert_pem.bytes()
    )


@pytest.fixture
def bundle(services: Services, tmp_path: Path) -> Path:
    path = tmp_path / "bundle.pem"
    path.write_bytes(services.authority.pem)
    tmp_path.chmod(0o755)
    return path


def test_curl_reaches_a_service_with_the_credential_and_never_sees_it(
    namespace: Namespace, rig: Rig, origin: Make, tls: ssl.SSLContext, services: Services, bundle: Path
) -> None:
    server = origin(echo_head, tls)
    policy = f"""
[services.own]
hosts = ["ok.example"]
inject = {{ header = "Authorization", value = "Bearer {{secret}}" }}
secret = "file:/nowhere"
allow = ["GET /a/**"]
[upstream.connect]
"ok.example:443" = "{server.address}"
"""
    _, watch = rig.open(namespace.door, policy, services)
    done = namespace.run(
        "curl", "-sS", "--cacert", str(bundle), "-H", f"Authorization: Bearer {STAND_IN}",
        "https://ok.example/a/b", "https://ok.example/a/c?x=1", "https://ok.example/z"
    )
    print(done.stdout, done.stderr, watch.events)
    assert SECRET not in done.stdout
    assert done.stdout.count(f"Bearer {STAND_IN}"[:20]) == 2
    assert server.connections == 1
