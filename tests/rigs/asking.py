"""A run whose program connects to a host that no rule names, and the server that it would reach."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "late.example"
PORT = 9000

PROGRAM = f"""
import socket
print("ready", flush=True)
try:
    with socket.create_connection(("{HOST}", {PORT}), 120) as made:
        made.sendall(b"ping")
        print(made.recv(4).decode() or "refused", flush=True)
except OSError:
    print("refused", flush=True)
"""


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(self.request.recv(4))


@contextlib.contextmanager
def asked_host() -> Iterator[str]:
    """A server on loopback; the policy under which a person is asked about it."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        yield (
            '[approvals]\nask = ["hosts"]\nwait = "90s"\n'
            f'[upstream.connect]\n"{HOST}:{PORT}" = "{address}"\n'
        )
        server.shutdown()
