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

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock`: kind, whence, start, length (0: to the end) and process, which is 0 for a lock of
an open file description."""


@contextlib.contextmanager
def watching(runtime: Path) -> Iterator[None]:
    """Be seen as a watcher. Raises ResourceUnusable."""
    directory = open_directory(runtime, make=True)
    try:
        lock = os.open(WATCH_LOCK, _FLAGS | os.O_CREAT, 0o600, dir_fd=directory)
    except OSError as error:
        raise ResourceUnusable(f"{runtime / WATCH_LOCK}: {error.strerror}") from None
    finally:
        os.close(directory)
    try:
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
        except OSError as error:
            raise ResourceUnusable(f"{runtime / WATCH_LOCK}: {error.strerror}") from None
        yield
    finally:
        os.close(lock)


def is_watched(runtime: Path) -> bool:
    """Whether a watcher of this user lives."""
    try:
        directory = open_directory(runtime, make=False)
    except (OSError, ResourceUnusable):
        return False
    try:
        lock = os.open(WATCH_LOCK, _FLAGS, dir_fd=directory)
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
