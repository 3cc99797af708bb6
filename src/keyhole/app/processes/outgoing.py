"""Queues bytes for another process that cannot be sent at once, in order.

Used by both kinds of data plane and by the processes that start them. The socket does not block, so
nothing that the other process does or leaves undone keeps this one waiting (I12).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable


class OutgoingBytes:
    """The sending half of one socket. Before `attach`, everything waits."""

    def __init__(self, sock: socket.socket, lost: Callable[[], None]) -> None:
        """`lost` is called when nothing can be sent to the other process any more."""
        self._sock = sock
        self._lost = lost
        self._waiting = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def __len__(self) -> int:
        """The number of bytes that wait."""
        return len(self._waiting)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send on a loop from now on."""
        self._loop = loop
        self._sock.setblocking(False)

    def send(self, data: bytes) -> None:
        """Send this after the bytes that wait; once it is closed, drop it."""
        if not self._closed:
            self._waiting += data
            self._flush()

    def finish(self, data: bytes, seconds: float) -> None:
        """Send all that waits and this, after the loop has ended; it may take so many seconds."""
        waiting, self._waiting = bytes(self._waiting), bytearray()
        if not self._closed:
            self._closed = True
            self._sock.settimeout(seconds)
            with contextlib.suppress(OSError):
                self._sock.sendall(waiting + data)

    def close(self) -> None:
        """Send nothing more; the socket stays open. A second call does nothing."""
        self._closed = True
        self._waiting.clear()
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_writer(self._sock)

    def _flush(self) -> None:
        if self._loop is None:
            return
        try:
            while self._waiting:
                del self._waiting[: self._sock.send(self._waiting)]
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._flush)
            return
        except OSError:
            self.close()
            self._lost()
            return
        self._loop.remove_writer(self._sock)
