"""The demo's real part: a service on this host's loopback, and a client in a sandbox that asks it.

No internet, no file outside a temporary directory, and it ends by itself.
"""

from __future__ import annotations

import datetime
import http.server
import os
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.app.catalogue import FileCatalogue
from keyhole.app.places import Places
from keyhole.app.policyfile import Joined, open_policy
from keyhole.app.prepare import prepare
from keyhole.app.run import Outcome, Run, execute
from keyhole.app.tried import Remembered
from keyhole.app.trust import examine
from keyhole.audit.directory import Directory
from keyhole.audit.read import Entry, Story, Wanted
from keyhole.model.value import dataclass
from keyhole.sandbox import programs
from keyhole.sandbox.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NAME = "hello.keyhole.example"

CLIENT = f"""
import socket, ssl, urllib.request
def attempt(what, work):
    try:
        print(f"  {{what:<44}} {{work()}}", flush=True)
    except OSError as error:
        print(f"  {{what:<44}} refused: {{getattr(error, 'reason', error)}}", flush=True)
def get(url):
    return urllib.request.urlopen(url, timeout=5).read().decode().strip()
print("  network interfaces inside:", [name for _, name in socket.if_nameindex()], flush=True)
attempt("https://{NAME}/", lambda: get("https://{NAME}/"))
attempt("https://evil.example/", lambda: get("https://evil.example/"))
attempt("https://192.0.2.1/", lambda: get("https://192.0.2.1/"))
"""
"""What the sandboxed client does: one allowed host, one denied name, one denied address."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How the run ended, and the events of its audit log."""

    outcome: Outcome
    entries: tuple[Entry, ...]


def run_client(directory: Path, report: Callable[[str], None]) -> Shown:
    """Serve, run the client in a sandbox, and read back what was written down."""
    project = directory / "project"
    project.mkdir()
    with _service(directory, project) as port:
        (project / "keyhole.toml").write_text(
            f'version = 1\n[egress]\nallow = ["{NAME}"]\n[sandbox.env]\n'
            f'SSL_CERT_FILE = "{project}/service.crt"\n'
            f'[upstream.connect]\n"{NAME}:443" = "127.0.0.1:{port}"\n'
        )
        places = Places(directory / "home", directory / "config", directory / "state")
        places.home.mkdir()
        file = open_policy(project / "keyhole.toml", places, FileCatalogue())
        command = (programs.find().python, "-I", "-c", CLIENT)
        prepared = prepare(
            examine(file, places.home, ""),
            Joined(file.loaded.policy, (), ()),
            places,
            {},
            command,
            project,
        )
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        outcome = execute(
            Run(
                policy=file.loaded.policy,
                launch=prepared.launch(interactive=False),
                terminal=Terminal(null, 1, 2),
                audit_directory=places.audit,
                tried=Remembered(places.tried),
                force_test=False,
                report=report,
            )
        )
        os.close(null)
    wanted = Wanted(outcome.session)
    story = Story(Directory.open(places.audit))
    return Shown(outcome, tuple(entry for entry in story.read() if wanted.takes(entry)))


@contextmanager
def _service(directory: Path, project: Path) -> Iterator[int]:
    """A TLS service on loopback with a certificate that only the client is told to trust."""
    certificate, key = project / "service.crt", directory / "service.key"
    _write_certificate(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"hello from a service on the host\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Be quiet: the demo speaks for itself."""


def _write_certificate(certificate: Path, key: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
