"""Connects to an inspected host's origin: resolves, judges, dials, and verifies (I4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway.tls import OriginChannel
from keyhole.gateway.upstream.origin import OriginConnection
from keyhole.model.decision import Reason
from keyhole.model.errors import UpstreamFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from keyhole.gateway.upstream.http2 import Http2Origin
    from keyhole.gateway.upstream.origin import Origin
    from keyhole.policy.rulebook import Rulebook
    from keyhole.system.dialler import Dialler

HANDSHAKE_TIMEOUT = 10.0
"""Seconds for TLS with an origin."""


async def reach(
    loop: asyncio.AbstractEventLoop,
    dialler: Dialler,
    book: Rulebook,
    trust: ssl.SSLContext,
    origin: Origin,
    protocols: Sequence[str],
) -> OriginConnection | Http2Origin:
    """The origin chooses from the `protocols`. Raises UpstreamFailed."""
    dialled = await dialler.dial(book, origin.host, origin.port)
    ready: asyncio.Future[None] = loop.create_future()
    connection = OriginConnection(origin, lambda user: OriginChannel(user, dialled.sock), ready)
    connection.address = dialled.decision
    try:
        await loop.create_connection(lambda: connection.channel, sock=dialled.sock)
    except OSError as error:
        dialled.sock.close()
        raise UpstreamFailed(Reason.UPSTREAM_UNREACHABLE, str(error)) from None
    try:
        connection.channel.begin(
            trust, protocols, server_name=origin.host.name, early=dialled.early
        )
        async with asyncio.timeout(HANDSHAKE_TIMEOUT):
            await ready
    except TimeoutError:
        connection.abort()
        raise UpstreamFailed(Reason.UPSTREAM_TLS, "TLS with the origin timed out") from None
    except BaseException:
        # Also after success, when the client has left meanwhile: nothing else would close it.
        connection.abort()
        raise
    if connection.shared is not None:
        connection.shared.address = dialled.decision
        return connection.shared
    return connection
