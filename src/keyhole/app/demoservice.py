"""The demo's service: it wants a key, says whether it got the right one, and gives it away.

Called by `demo.py`. It serves on this host's loopback and writes down what it received, which is
the witness of what left the gateway. It reads no policy and knows nothing of Keyhole.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.certs.authority import Authority
from keyhole.model.host import Host
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "hello.keyhole.example"

ASK = "/v1/whoami"
"""Answers whether the key is the right one."""
ECHO = "/v1/echo"
"""Answers with the key that it was given, as it is and in base64."""

RIGHT = "the service says: this is the real key"
WRONG = "the service says: this is not the key"


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
def serve(key: str) -> Iterator[Service]:
    """Serve on a free port of loopback until the block ends."""
    # A CA of the service's own: nobody knows it but who is told, and its key is in no file.
    authority = Authority.create("demo-service")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    service = Service(server.server_address[1], authority.pem)
    server.RequestHandlerClass = _handler(key, service.received)
    context = authority.leaf(Host.parse(NAME))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(key: str, received: list[Received]) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            real = given == f"Bearer {key}"
            answer = {"said": RIGHT if real else WRONG}
            if self.path == ECHO:
                encoded = base64.b64encode(given.encode("latin-1")).decode("ascii")
                answer = {"authorization": given, "base64": encoded}
            body = json.dumps(answer)
            received.append(Received(self.path, real, key in body))
            self.send_response(200 if real else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode("ascii"))

        def log_message(self, *args: object) -> None:
            """Be quiet: the demo speaks for itself."""

    return Handler
