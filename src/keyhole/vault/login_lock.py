"""Locks a login, so that only one process renews it: among Keyholes, and with the client itself.

Held by `login_source.py` from before a login file is read again until it is written. Keyholes wait
for one another by `flock` on the file's directory, which leaves nothing behind. Claude Code makes a
directory instead, as the library `proper-lockfile` does: the process that made it holds the lock,
touches it every few seconds, and counts as dead when the last touch is a minute old.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

WAIT = 20.0
"""Seconds to wait for others; a client gives up after ten."""

STALE = 60.0
"""Seconds without a touch after which a client takes a lock for abandoned."""

TOUCH = 5.0
"""Seconds between two touches, as clients do it."""

_LOOK = 0.05
"""Seconds between two attempts."""


@contextlib.contextmanager
def locked(directory: int, others: tuple[Path, ...], over: threading.Event) -> Iterator[None]:
    """Hold the lock of a directory and those of its client.

    Raises ResourceUnusable if another process renews, or a lock cannot be taken. `over` ends the
    waiting, but not a renewal that has begun.
    """
    deadline = time.monotonic() + WAIT
    while not _flock(directory):
        _pause(over, deadline)
    with contextlib.ExitStack() as held:
        held.callback(fcntl.flock, directory, fcntl.LOCK_UN)
        made = []
        for path in others:
            while (lock := _make(path)) is None:
                _pause(over, deadline)
            held.callback(lock.remove)
            made.append(lock)
        if made:
            held.enter_context(_touching(made))
        yield


def _flock(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise ResourceUnusable(f"it cannot be locked: {(error.strerror or '').lower()}") from None
    return True


class _Lock(Struct, frozen=True):
    """A directory that we made. After a long suspend another process may have replaced our lock
    with its own: that one is neither touched nor removed."""

    path: Path
    identity: tuple[int, int]

    def touch(self) -> None:
        with contextlib.suppress(OSError):
            if _identity(self.path) == self.identity:
                os.utime(self.path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            if _identity(self.path) == self.identity:
                os.rmdir(self.path)


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _make(path: Path) -> _Lock | None:
    try:
        os.mkdir(path, 0o700)
        return _Lock(path, _identity(path))
    except FileExistsError:
        _clear(path)
        return None
    except OSError as error:
        # If the lock cannot be made, the client's own file cannot be replaced either.
        words = (error.strerror or "").lower()
        raise ResourceUnusable(f"{visible(str(path))} cannot be made: {words}") from None


def _clear(path: Path) -> None:
    """Remove a lock whose holder is gone; one with a time in the future counts as stale."""
    with contextlib.suppress(OSError):
        if abs(time.time() - os.lstat(path).st_mtime) > STALE:
            os.rmdir(path)


def _pause(over: threading.Event, deadline: float) -> None:
    if over.wait(_LOOK):
        raise ResourceUnusable("the session is over")
    if time.monotonic() > deadline:
        raise ResourceUnusable("another program is renewing it")


@contextlib.contextmanager
def _touching(locks: Sequence[_Lock]) -> Iterator[None]:
    """Touch the locks while a slow answer is awaited, to show that the holder lives."""
    done = threading.Event()

    def touch() -> None:
        while not done.wait(TOUCH):
            for lock in locks:
                lock.touch()

    thread = threading.Thread(target=touch, name="login lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
