"""The two ends of a tunnel: bytes across, backpressure, half-close.

Hot path: one callback per chunk, one write, no task. Each side lets go of its transport in
`connection_lost`, so that nothing waits for the garbage collector.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import perf_counter
from typing import TYPE_CHECKING, cast

from keyhole.gateway.sockets import reset

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from keyhole.gateway.door.tunnel import Tunnel

WRITE_BUFFER = 256 * 1024
"""Bytes waiting for a slow reader at which the other side is no longer read from."""


class Side(asyncio.Protocol, ABC):
    """One side of a tunnel. `other` is set once it exists."""

    def __init__(self, tunnel: Tunnel, sock: socket.socket | None = None) -> None:
        self.tunnel = tunnel
        self.sock = sock
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self.eof = False
        self.slow = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and break the cycles with the transport and the tunnel."""
        tunnel, self.transport, self.sock = self.tunnel, None, None
        tunnel.side_lost(self, exc)
        del self.tunnel

    def eof_received(self) -> bool:
        """Pass the half-close on; both close when both sides have ended."""
        self.eof = True
        other = self.other
        if other is None:
            return self._early_eof()
        other.write_eof()
        if other.eof:
            other.close()
            self.close()
        return True

    def _early_eof(self) -> bool:
        """The end of this side while there is no other; True keeps it open."""
        return False

    def pause_writing(self) -> None:
        """This side is slow: stop reading from the other."""
        self.slow = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side has caught up."""
        self.slow = False
        if self.other is not None:
            self.other.resume()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; when the session has used up its turn, stop reading until the next one."""
        turn = self.tunnel.state.turn
        began = perf_counter()
        self.passed(data)
        turn.spend(began)
        if turn.left <= 0 and self.transport is not None:
            self.transport.pause_reading()
            turn.later(self._next_turn)

    @abstractmethod
    def passed(self, data: bytes) -> None:
        """Handle bytes of this side."""

    def _next_turn(self) -> None:
        """Read again, unless this side waits for the other."""
        if self.transport is None:
            return
        other = self.other
        if self.tunnel.held if other is None else other.slow:
            return
        self.resume()

    def write(self, data: bytes) -> None:
        """Send, unless the side is closing."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def write_eof(self) -> None:
        """Close the sending direction once all is sent."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        """Close once all is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Reset now."""
        if self.transport is not None:
            if self.sock is not None:
                reset(self.sock)
            self.transport.abort()


class ClientSide(Side):
    """The sandbox's side: judged by the gate while there is one, buffered until the origin is
    connected."""

    def passed(self, data: bytes) -> None:
        """Bytes to the origin."""
        tunnel = self.tunnel
        gate = tunnel.gate
        if gate is not None:
            data = tunnel.judge(gate, data)
            if not data:
                return
        over = tunnel.state.count_up(len(data))
        if over is not None:
            tunnel.over(over)
            return
        tunnel.up += len(data)
        other = self.other
        if other is not None:
            other.write(data)
        elif self.transport is not None:
            tunnel.held.append(data)
            self.transport.pause_reading()

    def _early_eof(self) -> bool:
        """A client that has ended its side may still wait for the response."""
        tunnel = self.tunnel
        if tunnel.lingers:
            return False
        if tunnel.ready.done():
            return tunnel.ready.result()
        if tunnel.gate is not None and tunnel.gate.waits:
            return False
        tunnel.settle(dial=True)
        return True


class OriginSide(Side):
    """The origin's side."""

    def __init__(
        self, tunnel: Tunnel, sock: socket.socket, joined: Callable[[OriginSide], None]
    ) -> None:
        super().__init__(tunnel, sock)
        self._joined: Callable[[OriginSide], None] | None = joined

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Join the tunnel before the first byte can arrive."""
        super().connection_made(transport)
        joined, self._joined = self._joined, None
        if joined is not None:
            joined(self)

    def passed(self, data: bytes) -> None:
        """Bytes to the client."""
        tunnel = self.tunnel
        over = tunnel.state.count_down(len(data))
        if over is not None:
            tunnel.over(over)
            return
        tunnel.down += len(data)
        other = self.other
        if other is not None:
            other.write(data)
