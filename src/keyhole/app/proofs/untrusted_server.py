"""A server on loopback with certificates of an unknown authority, which records clients that
accept.

Called by `client_trust.py` as its control. The names and the certificates are correct except for
one thing: their authority is in no list. It answers no request.
"""

from __future__ import annotations

import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.certs.authority import Authority
from keyhole.model.host import Host

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

_SILENCE_SECONDS = 5.0
"""How long a client may take for its next byte."""

_POLL_SECONDS = 0.05
"""How soon the server sees that it is to end."""


class UntrustedServer(Struct, frozen=True):
    """The connections seen so far, by the names that were asked for."""

    port: int
    met: set[str] = field(default_factory=set)
    """Clients that were shown the certificate."""
    believed: set[str] = field(default_factory=set)
    """Clients that then sent data."""


@contextmanager
def serve_untrusted(names: Sequence[str]) -> Iterator[UntrustedServer]:
    """Serve these names on a free port of loopback until the block ends."""
    authority = Authority.create("nobody")
    contexts = {name: authority.leaf(Host.parse(name)) for name in names}
    by_context = {context: name for name, context in contexts.items()}
    first = contexts[names[0]]

    def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name in contexts:
            handshake.context = contexts[name]
            untrusted.met.add(name)

    class Meeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(_SILENCE_SECONDS)
            try:
                with first.wrap_socket(self.request, server_side=True) as connection:
                    # Some clients check the certificate after the handshake: sending data is the
                    # proof.
                    if connection.recv(1):
                        untrusted.believed.add(by_context[connection.context])
            except OSError:
                return  # refused, as it should be

    first.sni_callback = choose
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Meeting) as server:
        untrusted = UntrustedServer(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        try:
            yield untrusted
        finally:
            server.shutdown()
            thread.join()
