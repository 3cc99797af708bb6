"""Tells a run that is about to start whether a person of this user watches.

A watcher holds a shared lock on one file of the runtime directory for as long as it lives; a run
has its endpoint, over which a watcher connects, only a moment after its command has begun.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from keyhole.control.socket_directory import open_directory
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WATCH_LOCK = "watch.lock"

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


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
        fcntl.flock(lock, fcntl.LOCK_SH)
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
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(lock)
    return False
