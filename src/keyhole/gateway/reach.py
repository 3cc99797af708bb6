"""A connection to an inspected host's origin: resolved, judged, dialled, and verified (I4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.origin import Insecure, Origin
from keyhole.model.decision import Reason

if TYPE_CHECKING:
    import ssl

    from keyhole.gateway.origin import Destination
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.dialler import Dialler

HANDSHAKE_TIMEOUT = 10.0
"""Seconds for TLS with an origin."""


async def reach(
    loop: asyncio.AbstractEventLoop,
    upstream: Dialler,
    book: Rulebook,
    trust: ssl.SSLContext,
    destination: Destination,
) -> Origin:
    """Raises AddressRefused, Unreachable or Insecure."""
    dialled = await upstream.dial(book, destination.host, destination.port)
    ready: asyncio.Future[None] = loop.create_future()
    origin = Origin(destination, dialled.sock, ready)
    origin.address = dialled.decision
    try:
        await loop.create_connection(lambda: origin, sock=dialled.sock)
    except OSError as error:
        dialled.sock.close()
        raise Insecure(Reason.UPSTREAM_UNREACHABLE, str(error)) from None
    try:
        origin.begin(trust, server_name=destination.host.name, early=dialled.early)
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await ready
    except TimeoutError:
        origin.abort()
        raise Insecure(refusal.UPSTREAM_TLS, "TLS with the origin timed out") from None
    except BaseException:
        # Also when all went well and the client has left meanwhile: nobody else knows of it.
        origin.abort()
        raise
    return origin
