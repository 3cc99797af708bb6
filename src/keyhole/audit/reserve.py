"""Allocates room on the disk before the log needs it (I8, I12).

Attack: a sandbox fills the disk of its project. If the log is on the same disk, it could not be
written, and the gateway would admit nothing for any session. So each file of the log has blocks
allocated behind its end, and lines are written there even when the disk is full.
"""

from __future__ import annotations

import ctypes
import errno
import os
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE, from <linux/falloc.h>: the file does not grow."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskReserve:
    """The blocks behind the end of one file."""

    __slots__ = ("_end", "_fd", "_unknown")

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._end = 0
        """Position in the file up to which blocks are allocated."""
        self._unknown = False
        """Whether the file system cannot allocate ahead: then there is no reserve."""

    def ensure(self, size: int, ahead: int) -> bool:
        """Allocate so many bytes behind a file of this size; False if the disk is full."""
        wanted = size + ahead
        # Not for each line: an eighth may be used before the reserve is filled up again.
        if self._unknown or self._end >= wanted - ahead // 8:
            return True
        if not ahead:
            return True
        code = _allocate()(self._fd, size, ahead)
        if code in _NO_ROOM:
            return False
        self._unknown = bool(code)
        self._end = wanted
        return True

    def release(self, size: int) -> None:
        """Release the reserve of a file that is not written any more."""
        if self._end > size:
            os.ftruncate(self._fd, size)


def trim(descriptor: int) -> None:
    """Release the reserve of a file whose writer was killed."""
    os.ftruncate(descriptor, os.fstat(descriptor).st_size)


@cache
def _allocate() -> Callable[[int, int, int], int]:
    """Call fallocate(2) without growing the file; returns errno. Python has no binding for it.

    `os.posix_fallocate` would grow it, and write zeros if the file system cannot allocate.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or libc.fallocate  # musl has only this name
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def allocate(descriptor: int, offset: int, length: int) -> int:
        return ctypes.get_errno() if function(descriptor, _KEEP_SIZE, offset, length) else 0

    return allocate
