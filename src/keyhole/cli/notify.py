"""Tells a service manager that the gateway is ready: sd_notify(3), as far as it is needed.

A datagram to the socket that NOTIFY_SOCKET names; without one there is nobody to tell.
"""

from __future__ import annotations

import contextlib
import socket

VARIABLE = "NOTIFY_SOCKET"


class Notifier:
    """Connected when it is made, since the gateway is locked in before it is ready."""

    def __init__(self, name: str | None) -> None:
        self._sock: socket.socket | None = None
        if not name or name[0] not in "/@":
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # A name that begins with '@' is of the abstract kind, which begins with a zero byte.
            sock.connect("\0" + name[1:] if name[0] == "@" else name)
        except OSError:
            sock.close()  # nobody is there; to be ready does not hang on it
        else:
            self._sock = sock

    def ready(self) -> None:
        """Say it, once."""
        if self._sock is None:
            return
        with contextlib.suppress(OSError), self._sock:
            self._sock.send(b"READY=1")
        self._sock = None
