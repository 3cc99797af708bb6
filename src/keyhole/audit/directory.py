"""The directory of the log and its files: made safely, named, locked.

A file is locked (flock) for as long as its writer lives: the kernel lets go when a writer is
killed, so that a lock is the truth about who still writes.
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

from keyhole.audit.reserve import trim
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from pathlib import Path

SUFFIX = ".jsonl"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SLACK = 256 * 1024
"""Bytes of blocks behind the end of a file that are a file system's own doing."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class AuditUnusable(Exception):
    """The log cannot be written or read here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of the log as the directory shows it."""

    name: str
    size: int
    mtime: int
    beyond: bool = False
    """Whether blocks are allocated for it far behind its end."""


class Directory:
    """An open directory of log files; names are resolved in it alone."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._fd = descriptor

    @classmethod
    def make(cls, path: Path) -> Directory:
        """For writing: made 0700 where there is none, refused where others could change it."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory = cls.open(path)
        except FileNotFoundError:
            raise AuditUnusable(f"{path}: vanished while it was opened") from None
        except FileExistsError:
            raise AuditUnusable(f"{path}: is not a directory; move it away") from None
        except OSError as error:
            raise AuditUnusable(f"{path}: {error.strerror}") from None
        found = os.fstat(directory._fd)
        wrong = None
        if found.st_uid != os.geteuid():
            wrong = f"belongs to uid {found.st_uid}; move it away"
        elif found.st_mode & _WRITABLE_BY_OTHERS:
            wrong = "is writable by others; `chmod go-w` it"
        if wrong:
            directory.close()
            raise AuditUnusable(f"{path}: {wrong}")
        return directory

    @classmethod
    def open(cls, path: Path) -> Directory:
        """For reading; FileNotFoundError where there is no log."""
        try:
            return cls(path, os.open(path, _READ | os.O_DIRECTORY))
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                raise AuditUnusable(
                    f"{path}: is a link or no directory; the log is not written through one"
                ) from None
            raise AuditUnusable(f"{path}: {error.strerror}") from None

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def free(self) -> int:
        """Bytes that are free on its disk; where that is not said, none."""
        try:
            found = os.fstatvfs(self._fd)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def has_room(self, size: int) -> bool:
        """Whether so many bytes are free on its disk; where that is not said, yes."""
        try:
            found = os.fstatvfs(self._fd)
        except OSError:
            return True
        return found.f_blocks == 0 or found.f_bavail * found.f_frsize >= size

    def listing(self) -> list[Listed]:
        """The log's files, oldest last write first. Links and other things are none of them."""
        found = []
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if not entry.name.endswith(SUFFIX):
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by a pruner meanwhile
                    status = os.stat(entry.name, dir_fd=self._fd, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        beyond = status.st_blocks * 512 > status.st_size + _SLACK
                        listed = Listed(entry.name, status.st_size, status.st_mtime_ns, beyond)
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
        """Whether a file of the log has this name; a name in a line may be anyone's text."""
        if "/" in name or not name.endswith(SUFFIX):
            return False
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Remove a file; that it is gone already is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._fd)

    def trim(self, name: str) -> None:
        """Give back what was allocated behind the end of a file, unless its writer lives."""
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
    """Take the lock of a file, unless its writer has it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
