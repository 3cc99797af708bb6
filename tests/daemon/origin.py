"""A service on loopback, over TLS, that repeats the credential it gets and writes it down."""

from __future__ import annotations

import contextlib
import queue
import ssl
import threading
from collections import defaultdict
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.sandbox.people import PATIENCE

if TYPE_CHECKING:
    import trustme

NAMES = ("one.example", "two.example", "tunnel.example", "granted.example")

STREAM = "/v1/stream/"
"""What is under it answers with what the test feeds it, a line at a time."""


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    host: str
    path: str
    authorization: str


class Origin:
    """Serves all names until it is closed."""

    def __init__(self, authority: trustme.CA) -> None:
        self.ca = authority.cert_pem.bytes().decode()
        self.seen: list[Seen] = []
        self._lines: dict[str, queue.Queue[str | None]] = defaultdict(queue.Queue)
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*NAMES).configure_cert(context)
        self._server.context = context
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def policy(self) -> str:
        """The tables that lead here."""
        at = f"127.0.0.1:{self._server.server_address[1]}"
        connect = "".join(f'"{name}:443" = "{at}"\n' for name in NAMES)
        return f'[upstream]\nca_file = "~/origin-ca.pem"\n[upstream.connect]\n{connect}'

    def close(self) -> None:
        """End it, and streams that nobody ended."""
        for lines in list(self._lines.values()):
            lines.put(None)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def feed(self, path: str, line: str | None) -> None:
        """The next line of a stream; None ends it."""
        self._lines[path].put(line)

    def next_line(self, path: str) -> str | None:
        """What a stream says next."""
        with contextlib.suppress(queue.Empty):
            return self._lines[path].get(timeout=PATIENCE)
        return None

    def credentials(self, path: str) -> list[str]:
        """What came with the requests for a path, in order."""
        return [each.authorization for each in self.seen if each.path == path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - its own
        # Whoever asks may leave at any time.
        with (
            contextlib.suppress(OSError),
            self.context.wrap_socket(request, server_side=True) as sock,
        ):
            super().finish_request(sock, client_address)


def _handler(origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            origin.seen.append(Seen(self.headers.get("Host", ""), self.path, given))
            if self.path.startswith(STREAM):
                self._stream()
                return
            body = f"{self.headers.get('Host')} got {given}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while (line := origin.next_line(self.path)) is not None:
                data = f"{line}\n".encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")

    return Handler
