"""A channel between two processes of the gateway. A message can carry a socket.

Used between the remote receiver, its listener and its relays. It is a pair of SOCK_SEQPACKET
sockets; when one process dies, the kernel closes its end.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

MAX_PARCEL = 128 * 1024
"""Bytes of one message: twice the size of an enrolment."""

MAX_WAITING = 1024
"""Messages that wait for a reader; beyond that the reader counts as dead."""


class ParcelChannel:
    """One end of a channel, served by an event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        heard: Callable[[dict[str, Any], socket.socket | None], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop, self._sock = loop, sock
        self._heard, self._ended = heard, ended
        self._waiting: deque[tuple[bytes, socket.socket | None]] = deque()
        self._open = True
        sock.setblocking(False)
        loop.add_reader(sock, self._readable)

    def send(self, message: dict[str, object], parcel: socket.socket | None = None) -> None:
        """Send a message, and a socket, which this channel then owns."""
        data = json.dumps(message).encode()
        if not self._open or len(data) > MAX_PARCEL or len(self._waiting) >= MAX_WAITING:
            if parcel is not None:
                parcel.close()
            return
        self._waiting.append((data, parcel))
        self._writable()

    def close(self) -> None:
        """Close the channel, without a callback on this side."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        for _, parcel in self._waiting:
            if parcel is not None:
                parcel.close()
        self._waiting.clear()

    def _writable(self) -> None:
        while self._waiting:
            data, parcel = self._waiting[0]
            try:
                socket.send_fds(self._sock, [data], [parcel.fileno()] if parcel else [])
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._writable)
                return
            except OSError:
                break  # its end shows when reading
            self._waiting.popleft()
            if parcel is not None:
                parcel.close()
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, MAX_PARCEL, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        parcel = socket.socket(fileno=descriptors[0]) if descriptors else None
        if not data:
            self.close()
            self._ended()
            return
        message = json.loads(data)
        if isinstance(message, dict):
            self._heard(message, parcel)
