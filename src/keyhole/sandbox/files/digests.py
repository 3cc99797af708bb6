"""Bounded digests of files that the sandbox can write (I9, I11).

Called before and after a run, outside. No link is followed, only regular files are read, and
reading has a time limit. A file that is not read is compared by inode, size and change time, which
no system call can set back.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from msgspec import Struct

MAX_DIGEST = 1 << 20
"""Bytes of a file that are compared by content; settings, hooks and scripts are far smaller."""
HASH_BYTES = 256 << 20
"""Bytes that are read in one search of all trees."""
HASH_SECONDS = 4.0
"""Time that reading them may take, however slow the disk is; usually it is some milliseconds."""
SETTLED_SECONDS = 2.0
"""A change time older than this detects every later change: file systems store it with a resolution
of two seconds at worst (FAT)."""
_PIECE = 1 << 18


class FileStamp(Struct, frozen=True):
    """Values that change when a file does."""

    content: str
    """The mode and the digest, or the target of a link; empty if it was not read."""
    identity: str
    """The file's number, size and time of change."""
    settled: bool = True
    """Whether the identity detects every change from now on."""

    @property
    def text(self) -> str:
        """The content, or else the identity, for a digest."""
        return self.content or self.identity


def is_same(before: FileStamp, after: FileStamp) -> bool | None:
    """Whether a file is unchanged; None when that cannot be determined."""
    if before.content and after.content:
        return before.content == after.content
    if before.identity != after.identity:
        return False
    return True if before.settled else None


class Digests:
    """Reads files until the bounds of one search are reached."""

    def __init__(
        self, most: int = MAX_DIGEST, total: int = HASH_BYTES, seconds: float = HASH_SECONDS
    ) -> None:
        self._most = most
        self._left = total
        self._seconds = seconds
        self._now = time.time()

    def file(self, path: str) -> FileStamp:
        """The stamp of a file, or of whatever is at the path."""
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                return FileStamp(f"no file {stat.S_IFMT(found.st_mode):o}", "")
            content = self._content(path, found) if self._may_read(found.st_size) else ""
        except OSError as error:
            return FileStamp(f"error {error.errno}", "")
        settled = found.st_ctime < self._now - SETTLED_SECONDS
        return FileStamp(content, _identity(found), settled)

    def _may_read(self, size: int) -> bool:
        if size > min(self._most, self._left) or self._seconds < 0:
            return False
        self._left -= size
        return True

    def _content(self, path: str, found: os.stat_result) -> str:
        """Mode and digest; empty when the file is changed while it is read."""
        started = time.monotonic()
        # O_NONBLOCK: a pipe may have been put there since.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            digest = hashlib.sha256()
            left = self._most + 1
            if _identity(os.fstat(file)) != _identity(found):
                return ""
            while left > 0 and (piece := os.read(file, min(left, _PIECE))):
                digest.update(piece)
                left -= len(piece)
            if _identity(os.fstat(file)) != _identity(found):
                return ""
        finally:
            os.close(file)
            self._seconds -= time.monotonic() - started
        return f"{bool(found.st_mode & 0o111)} {digest.hexdigest()}"


def digest_of(text: str) -> str:
    """A short digest of a text, which may contain half of a surrogate pair."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]


def _identity(found: os.stat_result) -> str:
    executable = bool(found.st_mode & 0o111)
    return f"{executable} {found.st_ino} {found.st_size} {found.st_ctime_ns}"
