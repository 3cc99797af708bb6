"""The register of ports of this host that Keyhole listens on: a locked file for each.

A process of Keyhole's claims a port before it listens: a run that publishes it, `keyhole web`,
`keyhole login`, `keyhole up --listen`. A data plane asks, before it passes a sandbox's connection
to a port of the host, whether the port is claimed: it would lead into another sandbox, or to
Keyhole itself. The kernel releases the locks of a process that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import TYPE_CHECKING

from keyhole.control.socket_directory import open_directory

if TYPE_CHECKING:
    import socket
    from pathlib import Path

_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES, _PAUSE = 20, 0.01
"""How often a claim is tried: a data plane that asks holds the lock for microseconds."""


def make_register(register: Path) -> None:
    """Make the directory. Raises ResourceUnusable."""
    os.close(open_directory(register.parent, make=True))
    os.close(open_directory(register, make=True))


def is_claimed(register: Path, port: int) -> bool:
    """Whether Keyhole listens on a port of this host; True if that cannot be found out."""
    try:
        lock = os.open(register / _name(port), _OPEN | os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


class PortClaim:
    """A claimed port; `release` gives it back."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock

    @classmethod
    def take(cls, register: Path, port: int) -> PortClaim | None:
        """Claim a port; None if another run has it. Raises ResourceUnusable and OSError."""
        make_register(register)
        path = register / _name(port)
        for _ in range(_TRIES):
            lock = os.open(path, _OPEN | os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(lock), os.stat(path)):
                    return cls(path, lock)
            except (BlockingIOError, FileNotFoundError):
                pass  # asked about, or removed, at this very moment
            os.close(lock)
            time.sleep(_PAUSE)
        return None

    @classmethod
    def listen(cls, register: Path, sock: socket.socket, backlog: int) -> PortClaim:
        """Claim the port that a socket is bound to, then listen on it: a connection that reaches
        it finds the claim. Raises ResourceUnusable and OSError."""
        claim = cls.take(register, sock.getsockname()[1])
        if claim is None:
            raise OSError(errno.EADDRINUSE, "another sandbox publishes it")
        try:
            sock.listen(backlog)
        except BaseException:
            claim.release()
            raise
        return claim

    def release(self) -> None:
        """Remove the file, which is still locked, and then the lock. A second call does nothing."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._lock)
        self._lock = -1


def _name(port: int) -> str:
    return f"{port}.lock"
