"""The demo's service: it requires a key, reports whether it was the right one, and echoes it.

Called by `demo.py`. It serves on this host's loopback and records the requests that it received,
which proves what left the gateway. Under a second name it is a forge with one repository, if it
is given one. It reads no policy and knows nothing of Keyhole.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.app.proofs import demo_repository
from keyhole.app.proofs.demo_calls import CALLS, serve_calls
from keyhole.certs.authority import Authority
from keyhole.model.host import Host

if TYPE_CHECKING:
    import io
    import ssl
    from collections.abc import Iterator

    from keyhole.app.proofs.demo_repository import DemoRepository

NAME = "hello.keyhole.example"

ASK = "/v1/whoami"
"""Answers whether the key is the right one."""
ECHO = "/v1/echo"
"""Answers with the key that it was given, as it is and in base64."""

CALL = "/hello.v1.Hello/Say"
"""The same as `ASK`, by gRPC."""

RIGHT = "the service says: this is the real key"
WRONG = "the service says: this is not the key"

HTTP2 = "h2"
"""Its name in ALPN."""

_POLL_SECONDS = 0.05
"""How soon the server sees that it is to end."""


class ReceivedRequest(Struct, frozen=True):
    """One request that reached the service, and whether the response revealed the real key."""

    path: str
    real_key: bool
    key_sent_back: bool


class DemoService(Struct, frozen=True):
    """A service that runs."""

    port: int
    ca_pem: bytes
    """The CA to trust for the service."""
    received: list[ReceivedRequest] = field(default_factory=list)


@contextmanager
def serve_demo(key: str, repository: DemoRepository | None = None) -> Iterator[DemoService]:
    """Serve on a free port of loopback until the block ends."""
    # A CA of the service's own: no list has it, and its key is in no file.
    authority = Authority.create("demo-service")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    service = DemoService(server.server_address[1], authority.pem)
    server.RequestHandlerClass = _handler(key, service.received, repository)
    names = (NAME, CALLS, demo_repository.HOST)
    contexts = {name: authority.leaf(Host.parse(name)) for name in names}
    contexts[CALLS].set_alpn_protocols([HTTP2])

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
    key: str, received: list[ReceivedRequest], repository: DemoRepository | None
) -> type[http.server.BaseHTTPRequestHandler]:
    pair = base64.b64encode(f"{demo_repository.USER}:{key}".encode()).decode("ascii")

    def call(path: str, given: str) -> str:
        real = given == f"Bearer {key}"
        received.append(ReceivedRequest(path, real, False))
        return RIGHT if real else WRONG

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle(self) -> None:
            if self.connection.selected_alpn_protocol() == HTTP2:
                serve_calls(self.connection, call)
            else:
                super().handle()

        def do_GET(self) -> None:
            if repository is not None and self.path.startswith(f"/{demo_repository.NAME}"):
                self._forge(repository, b"")
                return
            given = self.headers.get("Authorization", "")
            real = given == f"Bearer {key}"
            answer = {"said": RIGHT if real else WRONG}
            if self.path == ECHO:
                encoded = base64.b64encode(given.encode("latin-1")).decode("ascii")
                answer = {"authorization": given, "base64": encoded}
            body = json.dumps(answer)
            received.append(ReceivedRequest(self.path, real, key in body))
            self._say(200 if real else 401, (), body.encode("ascii"))

        def do_POST(self) -> None:
            chunked = "chunked" in self.headers.get("Transfer-Encoding", "")
            length = int(self.headers.get("Content-Length", 0))
            body = _unchunked(self.rfile) if chunked else self.rfile.read(length)
            if repository is None:
                self._say(404, (), b"")
            else:
                self._forge(repository, body)

        def _forge(self, repository: DemoRepository, body: bytes) -> None:
            real = self.headers.get("Authorization", "") == f"Basic {pair}"
            received.append(ReceivedRequest(self.path, real, False))
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
            """Print nothing: the demo prints its own lines."""

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
