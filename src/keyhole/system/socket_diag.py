"""Asks the kernel about one TCP socket of a network namespace, by `sock_diag(7)`.

The netlink socket decides which namespace is asked: the one that it was made in. Each question
costs the same, however many sockets there are.
"""

from __future__ import annotations

import socket
import struct

from msgspec import Struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_UID = struct.Struct("=I")
_ANSWER_AT = _HEADER.size
_STATE_AT = _ANSWER_AT + 1
_PORTS_AT = _ANSWER_AT + 4
_UID_AT = _ANSWER_AT + 4 + 48 + 12
"""`idiag_uid` in the answer: after family, state, timer and retransmissions, the socket's id,
expiry and the two queues."""
_LISTENS = 10
_NOBODY = 1
"""A port of the other end that no connection of a listener's answer can have by chance: it is below
those that clients get."""
_SECONDS = 1.0


class SocketOwner(Struct, frozen=True):
    """A TCP socket that the kernel found."""

    uid: int
    listens: bool


def open_diag() -> socket.socket:
    """A socket for questions about the network namespace of this thread. Raises OSError."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    made.settimeout(_SECONDS)
    return made


def find_connection(
    diag: socket.socket, own: tuple[str, int], peer: tuple[str, int]
) -> SocketOwner | None:
    """The socket of exactly this connection, seen from its own end; None: there is none. Raises
    OSError."""
    found, ports = _find(diag, own, peer)
    # Where there is no such connection, the kernel names what listens at the port.
    return found if ports == (own[1], peer[1]) else None


def is_listening(diag: socket.socket, own: tuple[str, int]) -> bool:
    """Whether a socket listens there, by itself or for all addresses. Raises OSError."""
    found, _ = _find(diag, own, (own[0], _NOBODY))
    return found is not None and found.listens


def _find(
    diag: socket.socket, own: tuple[str, int], peer: tuple[str, int]
) -> tuple[SocketOwner | None, tuple[int, int]]:
    family = socket.AF_INET6 if ":" in own[0] else socket.AF_INET
    addresses = [socket.inet_pton(family, each[0]).ljust(16, b"\0") for each in (own, peer)]
    named = _PORTS.pack(own[1], peer[1]) + b"".join(addresses) + b"\0" * 4 + b"\xff" * 8
    asked = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + named
    header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    diag.send(header + asked)
    answer = diag.recv(8192)
    if len(answer) < _UID_AT + _UID.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None, (0, 0)
    owner = SocketOwner(_UID.unpack_from(answer, _UID_AT)[0], answer[_STATE_AT] == _LISTENS)
    ports = _PORTS.unpack_from(answer, _PORTS_AT)
    return owner, (ports[0], ports[1])
