"""Tells a service manager that the gateway is ready and turns: sd_notify(3), as far as needed.

A datagram to the socket that NOTIFY_SOCKET names; without one there is nobody to tell. With
WATCHDOG_USEC the manager restarts a service that it does not hear from (sd_watchdog_enabled(3)).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import MutableMapping

VARIABLE = "NOTIFY_SOCKET"
WATCHDOG = "WATCHDOG_USEC"
WATCHDOG_PROCESS = "WATCHDOG_PID"

SHARE = 3
"""How often within the watchdog's time it is told that the data plane turns: sd_watchdog_enabled(3)
asks for twice."""


class Notifier:
    """Connected when it is made, since the gateway is locked in before it is ready."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        """What was meant for this process is taken out of `env`: its children are not the
        service."""
        self._sock: socket.socket | None = None
        self._interval = _watchdog(env.pop(WATCHDOG, ""), env.pop(WATCHDOG_PROCESS, ""))
        self._next = 0.0
        name = env.pop(VARIABLE, "")
        if name[:1] not in ("/", "@"):
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            # A name that begins with '@' is of the abstract kind, which begins with a zero byte.
            sock.connect("\0" + name[1:] if name[0] == "@" else name)
        except OSError:
            sock.close()  # nobody is there; to be ready does not hang on it
        else:
            self._sock = sock

    def ready(self) -> None:
        """It serves."""
        self._send(b"READY=1")
        if not self._interval:
            self.close()

    def turned(self) -> None:
        """The data plane turns; called much more often than the watchdog has to hear of it."""
        now = time.monotonic()
        if self._interval and now >= self._next:
            self._next = now + self._interval
            self._send(b"WATCHDOG=1")

    def close(self) -> None:
        """Say nothing more."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, message: bytes) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.send(message)


def _watchdog(usec: str, pid: str) -> float:
    """Seconds between two signs of life; 0 where nobody waits for them."""
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 1_000_000 / SHARE
