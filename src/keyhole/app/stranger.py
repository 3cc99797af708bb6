"""A host on loopback whose certificates nobody can verify, and who took one all the same.

Called by `clienttrial.py`, as the control of what clients trust. The names are right and the
certificates in order but for one thing: their authority is in no list. It answers nobody.
"""

from __future__ import annotations

import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.certs.authority import Authority
from keyhole.model.host import Host
from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

_SILENCE_SECONDS = 5.0
"""How long a client may take for its next byte."""

_POLL_SECONDS = 0.05
"""How soon the server sees that it is to end."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """What was seen so far, by the names that were asked for."""

    port: int
    met: set[str] = field(default_factory=set)
    """Who was shown the certificate."""
    believed: set[str] = field(default_factory=set)
    """Who then said something."""


@contextmanager
def serve_unvouched(names: Sequence[str]) -> Iterator[Stranger]:
    """Serve these names on a free port of loopback until the block ends."""
    authority = Authority.create("nobody")
    contexts = {name: authority.leaf(Host.parse(name)) for name in names}
    by_context = {context: name for name, context in contexts.items()}
    first = contexts[names[0]]

    def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if name in contexts:
            handshake.context = contexts[name]
            stranger.met.add(name)

    class Meeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(_SILENCE_SECONDS)
            try:
                with first.wrap_socket(self.request, server_side=True) as connection:
                    # Some look at the certificate when the handshake is over: what tells is
                    # whether they go on.
                    if connection.recv(1):
                        stranger.believed.add(by_context[connection.context])
            except OSError:
                return  # refused, as it should be

    first.sni_callback = choose
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Meeting) as server:
        stranger = Stranger(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        thread.start()
        try:
            yield stranger
        finally:
            server.shutdown()
            thread.join()
