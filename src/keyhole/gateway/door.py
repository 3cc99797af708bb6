"""A sandbox's door: the listening sockets that were born in its network namespace (I5)."""

from __future__ import annotations

import socket

from keyhole.model.value import dataclass

SO_NETNS_COOKIE = 71
"""From <asm-generic/socket.h>, Linux 5.14: which namespace a socket belongs to, for good."""


@dataclass(frozen=True, slots=True)
class Door:
    """The sockets, handed over by whoever made the namespace.

    `tcp` listens with IP_TRANSPARENT and is given every port by TPROXY; `udp` is bound to port 53
    with IP_PKTINFO. `tcp6` is there so that a literal IPv6 address is refused and written down.
    """

    tcp: socket.socket
    udp: socket.socket
    tcp6: socket.socket | None = None

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """The TCP listeners."""
        return (self.tcp,) if self.tcp6 is None else (self.tcp, self.tcp6)

    def close(self) -> None:
        """Close every socket: inside, connections are refused from now on."""
        for each in (*self.listeners, self.udp):
            each.close()


def namespace_cookie(sock: socket.socket) -> bytes:
    """The namespace that a socket belongs to."""
    return sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
