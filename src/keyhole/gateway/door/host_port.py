"""Connections of a sandbox to a port of the host's loopback, which `sandbox.host_ports` names.

The door accepts them on listeners of their own and starts `serve_host_port`. All limits of a
sandbox's connections hold. A port of Keyhole's own is refused: it may lead to another sandbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.gateway.context import Destination
from keyhole.gateway.door.gate import OpenGate
from keyhole.gateway.door.tunnel import Tunnel
from keyhole.model.decision import Decision, EgressDecision, Reason, Route, Verdict
from keyhole.model.host import Host
from keyhole.system.loopback import connect_to_loopback

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from keyhole.gateway.session import SessionState

RULE = "sandbox.host_ports"
_LOCALHOST = Host("localhost")
_ALLOWED = EgressDecision(Verdict.ALLOW, Reason.HOST_PORT, RULE, Route.TUNNEL)


def may_use(state: SessionState, port: int) -> bool:
    """Whether the policy in force names the port."""
    return port in state.session.book.policy.sandbox.host_ports


class HostPortTunnel(Tunnel):
    """One connection to a port of the host."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        port: int,
        ended: Callable[[Tunnel], None],
    ) -> None:
        super().__init__(loop, state, Destination(_LOCALHOST, port, _ALLOWED), OpenGate(), ended)

    def change(self, decision: EgressDecision) -> None:
        """The policy has changed: go on if it still names the port."""
        if not self._may_stay():
            self.cut(Reason.POLICY_CHANGED)

    def _may_stay(self) -> bool:
        return may_use(self.state, self.destination.port)


async def serve_host_port(
    loop: asyncio.AbstractEventLoop,
    tunnel: HostPortTunnel,
    sock: socket.socket,
    is_own: Callable[[int], bool],
) -> None:
    """Connect both sides, or end the connection."""
    tunnel.client.sock = sock
    await loop.connect_accepted_socket(lambda: tunnel.client, sock)
    tunnel.settle(dial=True)
    port = tunnel.destination.port
    try:
        dialled = await connect_to_loopback(loop, port)
    except (OSError, TimeoutError) as error:
        tunnel.deny(_ALLOWED, Reason.UPSTREAM_UNREACHABLE, why=type(error).__name__)
        tunnel.cut(Reason.UPSTREAM_UNREACHABLE)
        return
    # Asked when the connection stands, and before it carries a byte: a port of ours is entered in
    # the register before it is listened on.
    if is_own(port):
        dialled.sock.close()
        tunnel.deny(Decision(rule=RULE), Reason.OWN_PORT)
        tunnel.cut(Reason.OWN_PORT)
        return
    side = tunnel.origin_side(dialled.sock, b"", dialled.decision)
    try:
        await loop.create_connection(lambda: side, sock=dialled.sock)
    except OSError as error:
        dialled.sock.close()
        tunnel.deny(_ALLOWED, Reason.UPSTREAM_UNREACHABLE, why=type(error).__name__)
        tunnel.cut(Reason.UPSTREAM_UNREACHABLE)
