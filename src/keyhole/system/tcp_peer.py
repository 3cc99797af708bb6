"""The user whose process has the other end of a loopback connection, as the kernel knows it.

`SO_PEERCRED` is for Unix sockets alone. The kernel tells the owner of each TCP socket of this
network namespace by `sock_diag(7)`; the other end of a loopback connection is one of them.
"""

from __future__ import annotations

import socket

from keyhole.system.socket_diag import find_connection, open_diag

_SECONDS = 1.0


def tells_tcp_peers() -> bool:
    """Whether the kernel says at all who connected: some are built without `sock_diag`."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), _SECONDS) as client,
        ):
            own, peer = server.getsockname()[1], client.getsockname()[1]
            return tcp_peer_user(own, peer) is not None
    except OSError:
        return True  # nobody is let in because a probe failed


def tcp_peer_user(own_port: int, peer_port: int) -> int | None:
    """The user of the process that connected from `peer_port` of 127.0.0.1; None if the kernel
    does not say."""
    try:
        with open_diag() as diag:
            found = find_connection(diag, ("127.0.0.1", peer_port), ("127.0.0.1", own_port))
    except OSError:
        return None
    return found.uid if found is not None else None
