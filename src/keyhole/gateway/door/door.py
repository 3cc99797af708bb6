"""A sandbox's door: the listening sockets that were born in its network namespace (I5)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Sequence

SO_NETNS_COOKIE = 71
"""From <asm-generic/socket.h>, Linux 5.14: the namespace that a socket belongs to for good."""


class Door(Struct, frozen=True):
    """The sockets, handed over by the process that made the namespace.

    `tcp` listens with IP_TRANSPARENT and is given every port by TPROXY; `udp` is bound to port 53
    with IP_PKTINFO. `tcp6` is there so that a literal IPv6 address is refused and written down.
    """

    tcp: socket.socket
    udp: socket.socket
    tcp6: socket.socket | None = None
    host_ports: tuple[socket.socket, ...] = ()
    """Listeners on the sandbox's loopback, for ports that lead to the host's."""
    inner: tuple[socket.socket, ...] = ()
    """Sockets that can connect to servers in the sandbox."""
    published: tuple[socket.socket, ...] = ()
    """Listeners on the host's loopback, of the host's own namespace."""
    inner_ports: dict[int, int] = field(default_factory=dict)
    """The port inside, by the published port of the host."""

    @classmethod
    def of(cls, sockets: Sequence[socket.socket], inner_ports: dict[int, int]) -> Door:
        """Sort the sockets of a door by the kernel's facts about each. The first two are always
        those of TCP and DNS."""
        tcp, udp, *others = sockets
        cookie, capture = namespace_cookie(tcp), tcp.getsockname()[1]
        tcp6, host_ports, inner, published = None, [], [], []
        for each in others:
            if namespace_cookie(each) != cookie:
                published.append(each)
            elif not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                inner.append(each)
            elif each.getsockname()[1] == capture:
                tcp6 = each
            else:
                host_ports.append(each)
        return cls(tcp, udp, tcp6, tuple(host_ports), tuple(inner), tuple(published), inner_ports)

    @property
    def listeners(self) -> tuple[socket.socket, ...]:
        """The TCP listeners inside."""
        six = () if self.tcp6 is None else (self.tcp6,)
        return (self.tcp, *six, *self.host_ports)

    @property
    def sockets_inside(self) -> tuple[socket.socket, ...]:
        """All sockets of the sandbox's network namespace."""
        return (*self.listeners, self.udp, *self.inner)

    def close(self) -> None:
        """Close every socket: inside, connections are refused from now on."""
        for each in (*self.sockets_inside, *self.published):
            each.close()


def namespace_cookie(sock: socket.socket) -> bytes:
    """The cookie of the namespace that a socket belongs to."""
    return sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
