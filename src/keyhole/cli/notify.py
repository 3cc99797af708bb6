"""Tells a service manager that the gateway is ready and alive, by sd_notify(3).

Messages are datagrams to the socket that NOTIFY_SOCKET names; without it none is sent. With
WATCHDOG_USEC the manager restarts a service that sends no sign of life (sd_watchdog_enabled(3)).
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
"""Signs of life within the watchdog's interval; sd_watchdog_enabled(3) recommends two."""


class Notifier:
    """Sends the messages. It connects at once, because the lock-down comes before `ready`."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        """Remove the manager's variables from `env`: child processes are not the service."""
        self._sock: socket.socket | None = None
        self._interval = _watchdog(env.pop(WATCHDOG, ""), env.pop(WATCHDOG_PROCESS, ""))
        self._next = 0.0
        name = env.pop(VARIABLE, "")
        if name[:1] not in ("/", "@"):
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        try:
            # '@' stands for the zero byte at the start of an abstract socket's name.
            sock.connect("\0" + name[1:] if name[0] == "@" else name)
        except OSError:
            sock.close()  # no manager listens; the gateway starts all the same
        else:
            self._sock = sock

    def ready(self) -> None:
        """Tell the manager that the gateway serves."""
        self._send(b"READY=1")
        if not self._interval:
            self.close()

    def turned(self) -> None:
        """Tell the manager that the data plane is alive; calls beyond the interval send nothing."""
        now = time.monotonic()
        if self._interval and now >= self._next:
            self._next = now + self._interval
            self._send(b"WATCHDOG=1")

    def close(self) -> None:
        """Send no more messages."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _send(self, message: bytes) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                self._sock.send(message)


def _watchdog(usec: str, pid: str) -> float:
    """Seconds between two signs of life; 0 without a watchdog."""
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 1_000_000 / SHARE
