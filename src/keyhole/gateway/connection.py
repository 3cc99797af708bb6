"""How one accepted connection comes to stand: peek, resolve, judge, dial, join.

Started by the door for a name and port that policy has allowed; one short task, gone once both
sides are there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.model.decision import Decision, Reason, Verdict
from keyhole.system.dialler import AddressRefused, Dialler, Unreachable

if TYPE_CHECKING:
    import socket

    from keyhole.gateway.tunnel import Tunnel

FIRST_WORD = 0.3
"""Seconds that a client has to speak first on a port where the server may be the one to."""

HELLO_TIMEOUT = 10.0
"""Seconds for a whole hello or request head."""


async def serve(
    loop: asyncio.AbstractEventLoop,
    upstream: Dialler,
    dials: asyncio.Semaphore,
    tunnel: Tunnel,
    sock: socket.socket,
) -> None:
    """Bring up both sides of a tunnel, or end it."""
    # 1. The client's side: from here on its bytes are judged by the gate.
    tunnel.client.sock = sock
    await loop.connect_accepted_socket(lambda: tunnel.client, sock)
    # 2. Nothing is resolved or dialled before the gate has spoken (I4).
    if not await _may_dial(tunnel):
        return
    # 3. Resolve, judge and dial; the sandbox gets a few at a time.
    bound = tunnel.bound
    try:
        async with dials:
            dialled = await upstream.dial(tunnel.state.session.book, bound.host, bound.port)
    except AddressRefused as error:
        tunnel.deny(error.decision, error.decision.reason)
        tunnel.cut(error.decision.reason)
        return
    except Unreachable as error:
        # Policy said yes; the network did not, or the session's share is used up.
        allowed = Decision(Verdict.ALLOW, bound.decision.reason, bound.decision.rule)
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


async def _may_dial(tunnel: Tunnel) -> bool:
    gate = tunnel.gate
    if gate is not None and not gate.waits:
        await asyncio.wait([tunnel.ready], timeout=FIRST_WORD)
    if not tunnel.ready.done() and gate is not None and gate.waits:
        await asyncio.wait([tunnel.ready], timeout=HELLO_TIMEOUT)
        if not tunnel.ready.done():
            tunnel.deny(Decision(), refusal.CLIENT_SILENT, quiet=True)
            tunnel.cut(refusal.CLIENT_SILENT)
    tunnel.settle(dial=True)
    return tunnel.ready.result()
