"""Tells a run that is about to start whether a person of this user watches.

A watcher holds a shared lock on one file of the runtime directory for as long as it lives; a run
has its endpoint, over which a watcher connects, only a moment after its command has begun. A run
only asks for the lock and takes none: two that start together must not see each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from typing import TYPE_CHECKING

from keyhole.control.socket_directory import open_directory
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WATCH_LOCK = "watch.lock"
DESKTOP_LOCK = "desktop.lock"
"""Held by the one process of a user that shows questions on the desktop."""

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock`: kind, whence, start, length (0: to the end) and process, which is 0 for a lock of
an open file description."""


@contextlib.contextmanager
def watching(runtime: Path) -> Iterator[None]:
    """Be seen as a watcher. Raises ResourceUnusable."""
    with _holding(runtime, WATCH_LOCK, fcntl.F_RDLCK):
        yield


@contextlib.contextmanager
def only_desktop(runtime: Path) -> Iterator[None]:
    """Be the only process that shows questions on the desktop. Raises ResourceUnusable."""
    with _holding(runtime, DESKTOP_LOCK, fcntl.F_WRLCK):
        yield


@contextlib.contextmanager
def _holding(runtime: Path, name: str, kind: int) -> Iterator[None]:
    directory = open_directory(runtime, make=True)
    try:
        lock = os.open(name, _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
    except OSError as error:
        raise ResourceUnusable(f"{runtime / name}: {error.strerror}") from None
    finally:
        os.close(directory)
    try:
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            raise ResourceUnusable(f"{runtime / name} is held by another process") from None
        except OSError as error:
            raise ResourceUnusable(f"{runtime / name}: {error.strerror}") from None
        yield
    finally:
        os.close(lock)


def is_watched(runtime: Path) -> bool:
    """Whether a watcher of this user lives."""
    return _is_held(runtime, WATCH_LOCK)


def has_desktop(runtime: Path) -> bool:
    """Whether a process of this user shows questions on the desktop."""
    return _is_held(runtime, DESKTOP_LOCK)


def _is_held(runtime: Path, name: str) -> bool:
    try:
        directory = open_directory(runtime, make=False)
    except (OSError, ResourceUnusable):
        return False
    try:
        lock = os.open(name, _FLAGS, dir_fd=directory)
    except OSError:
        return False
    finally:
        os.close(directory)
    try:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind = _LOCK.unpack(fcntl.fcntl(lock, fcntl.F_OFD_GETLK, asked))[0]
    except OSError:
        return False
    finally:
        os.close(lock)
    return bool(kind != fcntl.F_UNLCK)
