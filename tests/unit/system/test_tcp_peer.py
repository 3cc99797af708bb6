from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from keyhole.system import socket_diag
from keyhole.system.tcp_peer import tcp_peer_user, tells_tcp_peers

if TYPE_CHECKING:
    import pytest


def test_the_kernel_tells_whose_process_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        own = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", own)) as client:
            peer = client.getsockname()[1]
            assert tcp_peer_user(own, peer) == os.getuid()
            assert tcp_peer_user(own, own) is None  # no such connection
            assert tells_tcp_peers()
            monkeypatch.setattr(socket_diag, "_NETLINK_SOCK_DIAG", 31)  # a kernel without it
            assert tcp_peer_user(own, peer) is None
            assert not tells_tcp_peers()
