"""The channel between a gateway and the process that holds one of its sandboxes.

A pair of SOCK_SEQPACKET sockets, made by the sandbox's supervisor; one end goes to the gateway with
the door. Neither end is ever in the sandbox. The gateway sends messages for the user and reports
that the door was closed; the supervisor reports how the sandbox ended. When one of them dies, the
kernel closes its end.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

MAX_MESSAGE = 64 * 1024
"""Bytes of one message: twice what the longest lists of grants and budgets take."""

MAX_WAITING = 512
"""Queued messages for a stopped reader (Ctrl-Z): more than a session may report."""


class SandboxChannel:
    """One end, on a loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        heard: Callable[[dict[str, Any]], None],
        ended: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._heard = heard
        self._ended = ended
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._open = True
        sock.setblocking(False)
        loop.add_reader(sock, self._readable)

    def say(self, **message: object) -> None:
        """Send a message; one that cannot be sent at once is queued."""
        if self._open:
            self._waiting.append(json.dumps(message).encode()[:MAX_MESSAGE])
            self._writable()

    def hear(self) -> None:
        """Read pending messages now; do not wait for the loop."""
        for _ in range(MAX_WAITING):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        """Close it, without a callback on this side."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()

    def _writable(self) -> None:
        try:
            while self._waiting:
                self._sock.send(self._waiting[0])
                self._waiting.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._sock, self._writable)
            return
        except OSError:
            return  # the end shows when reading
        self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        """Read one message. Returns False if there is none."""
        try:
            data = self._sock.recv(MAX_MESSAGE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            self._ended()
            return False
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            return True  # cut at its bound, or not from us
        if isinstance(message, dict):
            self._heard(message)
        return True
