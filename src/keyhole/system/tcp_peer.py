"""The user whose process has the other end of a loopback connection, as the kernel knows it.

`SO_PEERCRED` is for Unix sockets alone. The kernel tells the owner of each TCP socket of this
network namespace by `sock_diag(7)`; the other end of a loopback connection is one of them.
"""

from __future__ import annotations

import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_UID = struct.Struct("=I")
_PORTS_AT = _HEADER.size + 4
_UID_AT = _HEADER.size + 4 + 48 + 12
"""`idiag_uid` in the answer: after family, state, timer and retransmissions, the socket's id,
expiry and the two queues."""
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
    address = socket.inet_aton("127.0.0.1").ljust(16, b"\0")
    named = _PORTS.pack(peer_port, own_port) + address + address + b"\0" * 4 + b"\xff" * 8
    asked = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, _ANY_STATE) + named
    size = _HEADER.size + len(asked)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as sock:
            sock.settimeout(_SECONDS)
            sock.send(header + asked)
            answer = sock.recv(8192)
    except OSError:
        return None
    if len(answer) < _UID_AT + _UID.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    # Where there is no such connection, the kernel names what listens at the port.
    if answer[_PORTS_AT : _PORTS_AT + _PORTS.size] != named[: _PORTS.size]:
        return None
    return int(_UID.unpack_from(answer, _UID_AT)[0])
