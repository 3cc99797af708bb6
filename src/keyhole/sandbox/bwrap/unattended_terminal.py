"""The terminal of a named sandbox, to which people attach and from which they detach.

The supervisor has the outer end of a pty and reads it, so that the command does not block. Each
attached terminal is a connection that gets a copy of the output, and sends keys. The command waits
for a slow one, as it does for any terminal; one that has stopped reading is detached.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import socket
import struct
import termios
import threading
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.handover import StandardStreams

if TYPE_CHECKING:
    from collections.abc import Callable

DETACH_KEYS = b"\x10\x11"
"""Ctrl-P Ctrl-Q, as Docker and Podman have it."""

MAX_ATTACHED = 16
"""Terminals that are attached at a time."""

STALLED_SECONDS = 2.0
"""How long an attached terminal may read nothing before it is detached."""

_CHUNK = 65536
_USUAL_SIZE = (24, 80)
"""Rows and columns while no person looks at it."""
_MAX_SAID = 4096
"""Bytes of output that are kept, to explain an early end."""
_DRAIN_SECONDS = 5.0


class UnattendedTerminal:
    """The person's end of the streams of a command that no person started in a terminal."""

    interactive = True
    raw = False
    occupied = False

    def __init__(self) -> None:
        self._master, self._slave = pty.openpty()
        size = struct.pack("4H", *_USUAL_SIZE, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        os.set_blocking(self._master, False)
        self.streams = StandardStreams(self._slave, self._slave, self._slave)
        self._said = b""
        self._typed = b""
        """Keys that the command has not read yet."""
        self._lock = threading.Lock()
        self._attached: dict[int, _AttachedTerminal] = {}
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._relay: threading.Thread | None = None

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to read, once the helper has its end."""
        os.close(self._slave)
        self._relay = threading.Thread(target=self._copy, daemon=True)
        self._relay.start()

    def resize(self) -> None:
        """Do nothing: each attached terminal sets the size."""

    def make_room(self) -> None:
        """Do nothing: there is no reader."""

    def close(self) -> None:
        """Read the last output, and detach all."""
        if self._relay is not None:
            self._relay.join(_DRAIN_SECONDS)

    def attach(self) -> tuple[int, int]:
        """Attach a terminal. Returns its connection, and the outer end of the pty, by which it sets
        the size; the caller closes both. Raises OSError if it is closed, or has too many."""
        with self._lock:
            if self._master < 0:
                raise OSError("its terminal is closed")
            if len(self._attached) >= MAX_ATTACHED:
                raise OSError(f"{MAX_ATTACHED} terminals are attached")
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self._attached[ours.fileno()] = _AttachedTerminal(ours)
            master = os.dup(self._master)
        os.eventfd_write(self._woken, 1)
        return theirs.detach(), master

    @property
    def last_line(self) -> str:
        """The last line of the output that was kept."""
        lines = self._said.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _copy(self) -> None:
        # A pty without a user returns EIO: the command and all that had it have ended.
        with contextlib.suppress(OSError):
            while self._turn():
                pass
        with self._lock:
            master, self._master = self._master, -1
            for each in self._attached.values():
                each.connection.close()
            self._attached.clear()
        os.close(master)

    def _turn(self) -> bool:
        """Wait, and copy what has come. Returns False at the end of the output."""
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        behind = False
        for descriptor, each in list(self._attached.items()):
            listens = select.POLLIN if len(self._typed) < _CHUNK else 0
            poll.register(descriptor, listens | (select.POLLOUT if each.unsent else 0))
            behind = behind or bool(each.unsent)
        read = 0 if behind else select.POLLIN
        if read or self._typed:
            poll.register(self._master, read | (select.POLLOUT if self._typed else 0))
        for descriptor, ready in poll.poll(STALLED_SECONDS * 1000 / 4 if behind else None):
            if descriptor == self._woken:
                os.eventfd_read(self._woken)
            elif descriptor != self._master:
                self._serve(descriptor, ready)
            elif ready & select.POLLOUT:
                self._typed = self._typed[os.write(self._master, self._typed) :]
            else:
                data = os.read(self._master, _CHUNK)
                if not data:
                    return False
                self._show(data)
        for descriptor, each in list(self._attached.items()):
            if each.stalled:
                self._detach(descriptor)
        return True

    def _serve(self, descriptor: int, ready: int) -> None:
        each = self._attached.get(descriptor)
        if each is not None and ready & select.POLLOUT and not each.send():
            self._detach(descriptor)
        elif each is not None and ready & ~select.POLLOUT:
            self._type(descriptor, each)

    def _show(self, data: bytes) -> None:
        self._said = (self._said + data)[-_MAX_SAID:]
        for descriptor, each in list(self._attached.items()):
            each.unsent = data
            each.since = time.monotonic()
            if not each.send():
                self._detach(descriptor)

    def _type(self, descriptor: int, each: _AttachedTerminal) -> None:
        try:
            data = each.connection.recv(_CHUNK)
        except OSError:
            data = b""
        self._typed += each.keys_of(data)
        if not data or each.leaves:
            self._detach(descriptor)

    def _detach(self, descriptor: int) -> None:
        with self._lock:
            self._attached.pop(descriptor).connection.close()


class _AttachedTerminal:
    """One connection, and whether its person began to type the keys that detach."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.leaves = False
        self.unsent = b""
        """Output that it has not read yet; no more is read from the command meanwhile."""
        self.since = 0.0
        """When it last read something."""
        self._held = b""

    @property
    def stalled(self) -> bool:
        """Whether it has stopped reading."""
        return bool(self.unsent) and time.monotonic() - self.since > STALLED_SECONDS

    def send(self) -> bool:
        """Send as much as it takes; False when it is gone."""
        try:
            sent = self.connection.send(self.unsent)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if sent:
            self.since = time.monotonic()
        self.unsent = self.unsent[sent:]
        return True

    def keys_of(self, data: bytes) -> bytes:
        """The keys for the command; the first of the two that detach waits for the second."""
        data, self._held = self._held + data, b""
        before, found, _ = data.partition(DETACH_KEYS)
        if found:
            self.leaves = True
            return before
        if data.endswith(DETACH_KEYS[:1]):
            self._held = DETACH_KEYS[:1]
            return data[:-1]
        return data
