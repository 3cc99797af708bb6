"""A trap on loopback that stands for an agent's providers and records who trusts its certificate.

Called by `agent_trial.py`. It has an authority of its own, made for the trial, and answers every
host's requests as `provider_answers.py` says. It forwards nothing.
"""

from __future__ import annotations

import http.server
import socket
import socketserver
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.app.proofs.provider_answers import answer_request
from keyhole.certs.authority import Authority
from keyhole.model.host import Host
from keyhole.wire.client_hello import ClientHello, HelloIncomplete, HelloReader

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

MAX_BODY = 1 << 24
"""Bytes of a request that are read: the first one of an agent has its whole prompt, 200 KiB."""

_HELLO_BYTES = 1 << 16
_MAX_LINE = 64
"""Bytes of a line that says how long a chunk is (RFC 9112 §7.1)."""
_SILENCE_SECONDS = 20.0
"""How long a client may take for its next byte."""
_POLL_SECONDS = 0.05
"""How soon the server sees that it is to end."""
_HALF_SECONDS = 0.01
"""How long the rest of a first message is waited for before it is looked at again."""


class TrapMeeting(Struct, frozen=True):
    """One connection: the protocols it offered (ALPN), and whether a request followed."""

    host: str
    offered: tuple[str, ...]
    trusted: bool


class ProviderTrap(Struct, frozen=True):
    """A trap that serves."""

    port: int
    ca_pem: bytes
    meetings: list[TrapMeeting] = field(default_factory=list)


@contextmanager
def serve_trap(
    names: Sequence[str], met: Callable[[TrapMeeting], None] | None = None
) -> Iterator[ProviderTrap]:
    """Serve these names on a free port of loopback until the block ends.

    `met` is called for each connection, in its thread, as soon as it has sent a request or failed.
    """
    authority = Authority.create("agent-trial")
    contexts = {name: authority.leaf(Host.parse(name)) for name in names}
    first = contexts[names[0]]

    def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        handshake.context = contexts.get(name or "", first)

    first.sni_callback = choose

    def note(meeting: TrapMeeting) -> None:
        trap.meetings.append(meeting)
        if met is not None:
            met(meeting)

    class TrapConnection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(_SILENCE_SECONDS)
            hello = _peek_hello(self.request)
            if hello is None:
                return
            host, offered = hello.sni or "", tuple(p.decode("latin-1") for p in hello.alpn)
            asked = threading.Event()

            def believe() -> None:
                asked.set()
                note(TrapMeeting(host, offered, trusted=True))

            try:
                with first.wrap_socket(self.request, server_side=True) as connection:
                    _Answers(connection, self.client_address, self.server, believe)
            except OSError:
                """Refused, or gone."""
            if not asked.is_set():
                note(TrapMeeting(host, offered, trusted=False))

    with _Server(("127.0.0.1", 0), TrapConnection) as server:
        trap = ProviderTrap(server.server_address[1], authority.pem)
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        try:
            yield trap
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False  # a client that keeps its connection must not delay the end

    def handle_error(self, *_: object) -> None:
        """Print nothing: the trial has the result."""


def _peek_hello(connection: socket.socket) -> ClientHello | None:
    """The client's first message, which stays to be read; None if it is no such message."""
    deadline = time.monotonic() + _SILENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            data = connection.recv(_HELLO_BYTES, socket.MSG_PEEK)
        except OSError:
            return None
        found = HelloReader().feed(data)
        if data and isinstance(found, HelloIncomplete):
            time.sleep(_HALF_SECONDS)
            continue
        return found if isinstance(found, ClientHello) else None
    return None


class _Answers(http.server.BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"

    def __init__(
        self, connection: ssl.SSLSocket, address: object, server: object, note: Callable[[], None]
    ) -> None:
        self._note: Callable[[], None] | None = note
        super().__init__(connection, address, server)  # type: ignore[arg-type]

    def _answer(self) -> None:
        if self._note is not None:
            self._note()
            self._note = None
        body = self._body()
        said = answer_request(self.path, body, upgrade=bool(self.headers["upgrade"]))
        self.send_response(said.status)
        self.send_header("Content-Type", said.kind)
        self.send_header("Content-Length", str(len(said.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said.body)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            length = self.headers.get("Content-Length", "0")
            return self.rfile.read(min(int(length), MAX_BODY)) if length.isdigit() else b""
        body = b""
        while size := int(self.rfile.readline(_MAX_LINE), 16):
            if size < 0 or len(body) + size > MAX_BODY:
                raise OSError("the body is too large")
            body += self.rfile.read(size)
            self.rfile.readline(_MAX_LINE)
        self.rfile.readline(_MAX_LINE)
        return body

    do_GET = do_POST = do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer

    def log_message(self, *args: object) -> None:
        """Print nothing: the trial has the result."""
