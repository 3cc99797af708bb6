"""The demo's service: it wants a key, says whether it got the right one, and gives it away.

Called by `demo.py`. It serves on this host's loopback and writes down what it received, which is
the witness of what left the gateway. Under a second name it is a forge with one repository, if it
is given one. It reads no policy and knows nothing of Keyhole.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.app import demorepository
from keyhole.certs.authority import Authority
from keyhole.model.host import Host
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    import io
    import ssl
    from collections.abc import Iterator

    from keyhole.app.demorepository import Repository

NAME = "hello.keyhole.example"

ASK = "/v1/whoami"
"""Answers whether the key is the right one."""
ECHO = "/v1/echo"
"""Answers with the key that it was given, as it is and in base64."""

RIGHT = "the service says: this is the real key"
WRONG = "the service says: this is not the key"

_POLL_SECONDS = 0.05
"""How soon the server sees that it is to end."""


@dataclass(frozen=True, slots=True)
class Received:
    """One request that reached the service, and whether the answer gave the real key away."""

    path: str
    real_key: bool
    key_sent_back: bool


@dataclass(frozen=True, slots=True)
class Service:
    """A service that runs."""

    port: int
    ca_pem: bytes
    """Who trusts it trusts the service."""
    received: list[Received] = field(default_factory=list)


@contextmanager
def serve(key: str, repository: Repository | None = None) -> Iterator[Service]:
    """Serve on a free port of loopback until the block ends."""
    # A CA of the service's own: nobody knows it but who is told, and its key is in no file.
    authority = Authority.create("demo-service")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    service = Service(server.server_address[1], authority.pem)
    server.RequestHandlerClass = _handler(key, service.received, repository)
    contexts = {name: authority.leaf(Host.parse(name)) for name in (NAME, demorepository.HOST)}

    def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        handshake.context = contexts.get(name or "", contexts[NAME])

    contexts[NAME].sni_callback = choose
    server.socket = contexts[NAME].wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(
    key: str, received: list[Received], repository: Repository | None
) -> type[http.server.BaseHTTPRequestHandler]:
    pair = base64.b64encode(f"{demorepository.USER}:{key}".encode()).decode("ascii")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if repository is not None and self.path.startswith(f"/{demorepository.NAME}"):
                self._forge(repository, b"")
                return
            given = self.headers.get("Authorization", "")
            real = given == f"Bearer {key}"
            answer = {"said": RIGHT if real else WRONG}
            if self.path == ECHO:
                encoded = base64.b64encode(given.encode("latin-1")).decode("ascii")
                answer = {"authorization": given, "base64": encoded}
            body = json.dumps(answer)
            received.append(Received(self.path, real, key in body))
            self._say(200 if real else 401, (), body.encode("ascii"))

        def do_POST(self) -> None:
            chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
            length = int(self.headers.get("Content-Length", 0))
            body = _unchunked(self.rfile) if chunked else self.rfile.read(length)
            if repository is None:
                self._say(404, (), b"")
            else:
                self._forge(repository, body)

        def _forge(self, repository: Repository, body: bytes) -> None:
            real = self.headers.get("Authorization", "") == f"Basic {pair}"
            received.append(Received(self.path, real, False))
            if not real:
                self._say(401, (("WWW-Authenticate", 'Basic realm="demo"'),), b"")
                return
            answer = repository.answer(self.command, self.path, self.headers, body)
            self._say(answer.status, answer.headers, answer.body)

        def _say(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Be quiet: the demo speaks for itself."""

    return Handler


def _unchunked(stream: io.BufferedIOBase) -> bytes:
    """A body of unknown length, as git sends large ones (RFC 9112 §7.1)."""
    pieces = []
    while size := int(stream.readline(), 16):
        pieces.append(stream.read(size))
        stream.readline()
    while stream.readline().strip():
        """Trailers say nothing here."""
    return b"".join(pieces)
