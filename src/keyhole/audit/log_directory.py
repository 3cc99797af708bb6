"""The directory of the log and its files: made safely, named, locked.

A file is locked (flock) for as long as its writer lives. The kernel releases the lock of a killed
writer, so a lock proves that the file is still being written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.audit.reserve import trim
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".jsonl"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SLACK = 256 * 1024
"""Bytes of blocks behind the end of a file that a file system allocates by itself."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class LogFile(Struct, frozen=True):
    """A file of the log as the directory lists it."""

    name: str
    size: int
    mtime: int
    beyond: bool = False
    """Whether it still has a reserve: blocks far behind its end."""


class LogDirectory:
    """An open directory of log files; names are resolved in it alone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor

    @classmethod
    def make(cls, path: Path) -> LogDirectory:
        """Open for writing; make it with mode 0700, refuse one that others could change."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = cls.open(path)
        except FileNotFoundError:
            raise ResourceUnusable(f"{path}: vanished while it was opened") from None
        except FileExistsError:
            raise ResourceUnusable(f"{path}: is not a directory; move it away") from None
        except OSError as error:
            raise ResourceUnusable(f"{path}: {error.strerror}") from None
        found = os.fstat(directory._fd)
        wrong = None
        if found.st_uid != os.geteuid():
            wrong = f"belongs to uid {found.st_uid}; move it away"
        elif found.st_mode & _WRITABLE_BY_OTHERS:
            wrong = "is writable by others; `chmod go-w` it"
        if wrong:
            directory.close()
            raise ResourceUnusable(f"{path}: {wrong}")
        return directory

    @classmethod
    def open(cls, path: Path) -> LogDirectory:
        """Open for reading; FileNotFoundError without a log."""
        try:
            return cls(path, os.open(path, _READ | os.O_DIRECTORY))
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise ResourceUnusable(
                    f"{path}: is a link or no directory; the log is not written through one"
                ) from None
            raise ResourceUnusable(f"{path}: {error.strerror}") from None

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)

    def free(self) -> int:
        """Free bytes on its disk; 0 if unknown."""
        try:
            found = os.fstatvfs(self._fd)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def has_room(self, size: int) -> bool:
        """Whether so many bytes are free on its disk; True if unknown."""
        try:
            found = os.fstatvfs(self._fd)
        except OSError:
            return True
        return found.f_blocks == 0 or found.f_bavail * found.f_frsize >= size

    def listing(self) -> list[LogFile]:
        """The log's files, oldest last write first, without links and other kinds of files."""
        found = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if not entry.name.endswith(SUFFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by a pruner meanwhile
                    status = os.stat(entry.name, dir_fd=self._fd, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        beyond = status.st_blocks * 512 > status.st_size + _SLACK
                        listed = LogFile(entry.name, status.st_size, status.st_mtime_ns, beyond)
                        found.append(listed)
        return sorted(found, key=lambda file: (file.mtime, file.name))

    def create(self, at: float) -> tuple[str, int]:
        """A new file and its descriptor, locked as this process's."""
        start = datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
        name = f"{start}-{os.getpid()}-{secrets.token_hex(4)}{SUFFIX}"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=self._fd)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return name, descriptor

    def read(self, name: str) -> int:
        """A descriptor for reading a file; OSError where it is gone or no regular file."""
        descriptor = os.open(name, _READ, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return descriptor

    def has(self, name: str) -> bool:
        """Whether a file of the log has this name; a name in a line may be any text."""
        if "/" in name or not name.endswith(SUFFIX):
            return False
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def trim(self, name: str) -> None:
        """Release the reserve of a file, unless its writer lives."""
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=self._fd)
            try:
                if try_lock(descriptor):
                    trim(descriptor)
            finally:
                os.close(descriptor)

    def is_written(self, name: str) -> bool:
        """Whether a living process still writes the file."""
        try:
            descriptor = self.read(name)
        except OSError:
            return False
        try:
            return not try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file, unless its writer holds the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
