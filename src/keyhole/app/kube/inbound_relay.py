"""Passes the bytes of one connection between two sockets, within bounds (I9), without reading them.

Used by `inbound_door.py`. One socket is a peer's, the other is connected to a server in the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from msgspec import Struct

_CHUNK = 65536


class ByteBudget(Struct):
    """Bytes that may still pass in one direction, for one connection or for several."""

    left: int


class RelayBounds(Struct, frozen=True):
    """How long a connection may last."""

    seconds: float
    idle: float
    """Seconds without a byte in either direction."""
    half_closed: float
    """Seconds after the peer has closed its side."""


class InboundRelay:
    """One connection."""

    def __init__(
        self,
        peer: socket.socket,
        pod: socket.socket,
        up: ByteBudget,
        down: ByteBudget,
        bounds: RelayBounds,
    ) -> None:
        self._peer = peer
        self._pod = pod
        self._budgets = up, down
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._active = self._loop.time()
        self.up = self.down = 0
        """Bytes that passed, from the pod and to it."""

    async def run(self) -> None:
        """Pass bytes until both sides have ended or a bound is reached."""
        bounds = self._bounds
        try:
            async with asyncio.timeout(bounds.seconds) as bound, asyncio.TaskGroup() as both:
                both.create_task(self._send_up())
                await self._send_down()
                left = self._loop.time() + bounds.half_closed
                bound.reschedule(min(bound.when() or left, left))
        except* (OSError, TimeoutError):
            close_with_reset(self._peer)

    async def _send_up(self) -> None:
        while data := await self._receive(self._pod, self._budgets[0]):
            self.up += len(data)
            await self._loop.sock_sendall(self._peer, data)
        self._peer.shutdown(socket.SHUT_WR)

    async def _send_down(self) -> None:
        while data := await self._receive(self._peer, self._budgets[1]):
            self.down += len(data)
            await self._loop.sock_sendall(self._pod, data)
        self._pod.shutdown(socket.SHUT_WR)

    async def _receive(self, source: socket.socket, budget: ByteBudget) -> bytes:
        """Read the next bytes; none at the end. Raises OSError, TimeoutError."""
        idle = self._bounds.idle
        while True:
            try:
                async with asyncio.timeout(idle):
                    data = await self._loop.sock_recv(source, _CHUNK)
                break
            except TimeoutError:
                if self._loop.time() - self._active >= idle:
                    raise
        self._active = self._loop.time()
        budget.left -= len(data)
        if budget.left < 0:
            raise OSError(errno.EDQUOT, "its bytes are used up")
        return data


def close_with_reset(sock: socket.socket) -> None:
    """Close with a reset, as if nothing listened at the port."""
    linger = b"\1\0\0\0\0\0\0\0"
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    sock.close()


def is_over(sock: socket.socket) -> bool:
    """Whether the peer has closed the connection without sending a byte."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
