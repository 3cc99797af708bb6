"""The content of files that the sandbox can write, told in a few bytes and within bounds (I9, I11).

Called before and after a run, outside. No link is followed, nothing but a regular file is read, and
reading has a time of its own. A file that is not read is told by its number, size and time of
change, which no call can set back: it is compared all the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time

from keyhole.model.value import dataclass

MAX_DIGEST = 1 << 20
"""Bytes of a file that are compared by content; settings, hooks and scripts are far smaller."""
HASH_BYTES = 256 << 20
"""Bytes that are read in one look at all trees."""
HASH_SECONDS = 4.0
"""Time that reading them may take, however slow the disk is; usually it is some milliseconds."""
SETTLED_SECONDS = 2.0
"""Older than this, a time of change tells every later change: file systems keep it to two seconds
at the coarsest (FAT)."""
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True)
class Mark:
    """What changes when a file does."""

    content: str
    """The mode and the digest, or where a link leads; empty if it was not read."""
    identity: str
    """The file's number, size and time of change."""
    settled: bool = True
    """Whether the identity tells every change from now on."""

    @property
    def text(self) -> str:
        """The best that is known, for a digest."""
        return self.content or self.identity


def is_same(before: Mark, after: Mark) -> bool | None:
    """Whether a file is as it was; None when that cannot be told."""
    if before.content and after.content:
        return before.content == after.content
    if before.identity != after.identity:
        return False
    return True if before.settled else None


class Digests:
    """Reads files until the bounds of one look are reached."""

    def __init__(
        self, most: int = MAX_DIGEST, total: int = HASH_BYTES, seconds: float = HASH_SECONDS
    ) -> None:
        self._most = most
        self._left = total
        self._seconds = seconds
        self._now = time.time()

    def file(self, path: str) -> Mark:
        """Of a file, or of whatever lies there."""
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                return Mark(f"no file {stat.S_IFMT(found.st_mode):o}", "")
            content = self._content(path, found) if self._may_read(found.st_size) else ""
        except OSError as error:
            return Mark(f"error {error.errno}", "")
        settled = found.st_ctime < self._now - SETTLED_SECONDS
        return Mark(content, _identity(found), settled)

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
    """A short name of a text, which may hold half of a surrogate pair."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]


def _identity(found: os.stat_result) -> str:
    executable = bool(found.st_mode & 0o111)
    return f"{executable} {found.st_ino} {found.st_size} {found.st_ctime_ns}"
