"""Sets up one tunnelled connection: peek at the first bytes, resolve, judge, dial, join.

The door starts it, as a short task, for a name and port that policy has allowed. The task ends when
both sides are connected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway.context import Destination
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.model.errors import UpstreamFailed

if TYPE_CHECKING:
    import socket

    from keyhole.gateway.door.gate import Gate
    from keyhole.gateway.door.tunnel import Tunnel
    from keyhole.system.dialler import Dialler

FIRST_WORD = 0.3
"""Seconds that a client has to send its first byte on a port where the server may speak first."""

HELLO_TIMEOUT = 10.0
"""Seconds for a whole hello or request head."""


async def serve(
    loop: asyncio.AbstractEventLoop,
    upstream: Dialler,
    dials: asyncio.Semaphore,
    tunnel: Tunnel,
    sock: socket.socket,
) -> None:
    """Connect both sides of a tunnel, or end it."""
    # 1. The client's side: from here on its bytes are judged by the gate.
    tunnel.client.sock = sock
    await loop.connect_accepted_socket(lambda: tunnel.client, sock)
    # 2. Nothing is resolved or dialled before the gate has spoken (I4).
    gate = tunnel.gate
    if not await may_dial(tunnel) or not await _approved(tunnel, gate):
        return
    # 3. Resolve, judge and dial; the sandbox gets a few at a time.
    destination = tunnel.destination
    try:
        async with dials:
            dialled = await upstream.dial(
                tunnel.state.session.book, destination.host, destination.port
            )
    except UpstreamFailed as error:
        # The address is refused, the network failed, or the session's share is used up.
        allowed = Decision(Verdict.ALLOW, destination.decision.reason, destination.decision.rule)
        said = allowed if error.decision is None else error.decision
        tunnel.deny(said, error.reason, why=str(error))
        tunnel.cut(error.reason)
        return
    # 4. Join.
    decision = dialled.decision
    side = tunnel.origin_side(dialled.sock, dialled.early, decision)
    try:
        await loop.create_connection(lambda: side, sock=dialled.sock)
    except OSError as error:
        dialled.sock.close()
        tunnel.deny(Decision(), Reason.UPSTREAM_UNREACHABLE, why=str(error))
        tunnel.cut(Reason.UPSTREAM_UNREACHABLE)


async def _approved(tunnel: Tunnel, gate: Gate | None) -> bool:
    """Wait for a person's answer where no rule names the destination; a refused client is answered
    in its own protocol. After the gate, so that nobody is asked about a name that the client's own
    hello does not have (I4)."""
    if tunnel.approval is None:
        return True
    decision = await tunnel.approval()
    tunnel.approval = None
    if not decision.allowed:
        if gate is None or decision.reason is Reason.CLIENT_LEFT:
            tunnel.deny(decision, decision.reason, quiet=True)
            tunnel.cut(decision.reason)
        else:
            tunnel.refuse(gate, decision.reason, decision)
        return False
    destination = tunnel.destination
    tunnel.destination = Destination(destination.host, destination.port, decision)
    return True


async def may_dial(tunnel: Tunnel) -> bool:
    """Wait until the gate has spoken; returns whether the other side may be dialled."""
    gate = tunnel.gate
    if gate is not None and not gate.waits:
        await asyncio.wait([tunnel.ready], timeout=FIRST_WORD)
    if not tunnel.ready.done() and gate is not None and gate.waits:
        await asyncio.wait([tunnel.ready], timeout=HELLO_TIMEOUT)
        if not tunnel.ready.done():
            tunnel.deny(Decision(), Reason.CLIENT_SILENT, quiet=True)
            tunnel.cut(Reason.CLIENT_SILENT)
    tunnel.settle(dial=True)
    return tunnel.ready.result()
