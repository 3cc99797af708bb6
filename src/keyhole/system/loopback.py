"""Connects to a port of this host's own loopback, which a policy has named.

Beside `dialler.py`, the one other module that connects: it resolves nothing, and no name or address
of another host comes here.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

from keyhole.model.decision import AddressDecision, Reason, Verdict
from keyhole.system.dialler import Dialled

if TYPE_CHECKING:
    from keyhole.model.decision import Address

CONNECT_SECONDS = 10.0
"""How long a server of this host may leave a connection in its queue."""

_ADDRESSES: tuple[tuple[socket.AddressFamily, Address], ...] = (
    (socket.AF_INET, ipaddress.IPv4Address("127.0.0.1")),
    (socket.AF_INET6, ipaddress.IPv6Address("::1")),
)


async def connect_to_loopback(loop: asyncio.AbstractEventLoop, port: int) -> Dialled:
    """A connection to 127.0.0.1, or to ::1 where nothing listens there. Raises OSError or
    TimeoutError."""
    refused = OSError("no address was tried")
    for family, address in _ADDRESSES:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.sock_connect(sock, (str(address), port))
        except OSError as error:
            sock.close()
            refused = error
        except BaseException:
            sock.close()
            raise
        else:
            allowed = AddressDecision(
                Verdict.ALLOW, Reason.HOST_PORT, "sandbox.host_ports", address, port
            )
            return Dialled(sock, allowed)
    raise refused
