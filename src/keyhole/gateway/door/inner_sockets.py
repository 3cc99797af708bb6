"""Sockets that were made in a sandbox's network, by which the gateway connects to servers inside.

A socket belongs to the network it was made in, for good, and the gateway can enter none. So the
helper makes a fixed number before the sandbox starts, and each is used again and again: `connect`
with AF_UNSPEC dissolves a connection, and the socket can connect anew (connect(2)).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

from keyhole.system.syscalls import dissolve_connection

if TYPE_CHECKING:
    from collections.abc import Iterable

CONNECT_SECONDS = 10.0
"""How long a server inside may leave a connection in its queue."""

_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_NO_LINGER = struct.pack("ii", 0, 0)


class InnerPlace:
    """One connection at a time to a server in the sandbox, over IPv4 or IPv6."""

    __slots__ = ("_sockets",)

    def __init__(self, sockets: tuple[socket.socket, ...]) -> None:
        self._sockets = sockets
        for each in sockets:
            each.setblocking(False)

    async def reach(self, loop: asyncio.AbstractEventLoop, port: int) -> socket.socket:
        """A connected socket, which the caller closes. Raises OSError or TimeoutError."""
        refused: OSError = ConnectionRefusedError()
        for each in self._sockets:
            address = _LOOPBACK[each.family]
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await loop.sock_connect(each, (address, port))
            except ConnectionRefusedError as error:
                refused = error
                continue
            return socket.socket(fileno=os.dup(each.fileno()))
        raise refused

    def dissolve(self) -> None:
        """End the connection, if there is one; afterwards the place can be used again."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                each.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                dissolve_connection(each.fileno())

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()


class InnerSockets:
    """All places of one sandbox."""

    def __init__(self, sockets: Iterable[socket.socket]) -> None:
        by_family: dict[int, list[socket.socket]] = {family: [] for family in _LOOPBACK}
        for each in sockets:
            by_family[each.family].append(each)
        four, six = by_family[socket.AF_INET], by_family[socket.AF_INET6]
        pairs = zip(four, six, strict=True) if six else ((each,) for each in four)
        self._all = [InnerPlace(pair) for pair in pairs]
        self._free = list(self._all)

    @property
    def any_free(self) -> bool:
        """Whether one more connection can be made."""
        return bool(self._free)

    def take(self) -> InnerPlace:
        """A free place; it comes back by `give_back`."""
        return self._free.pop()

    def give_back(self, place: InnerPlace) -> None:
        """Dissolve the connection of a place, and keep it for the next one."""
        place.dissolve()
        self._free.append(place)

    def close(self) -> None:
        """Close all of them."""
        for each in self._all:
            each.close()
