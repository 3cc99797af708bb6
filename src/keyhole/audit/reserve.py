"""Room on the disk that the log has before it needs it (I8, I12).

Attack: a sandbox fills the disk that its project lies on. Where the log lies on the same one, it
could not be written, and nothing would be admitted for anybody. So each file of the log has blocks
allocated behind its end; what is written goes there, whether or not the disk has others.
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


class Reserve:
    """The blocks behind the end of one file."""

    __slots__ = ("_end", "_fd", "_unknown")

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._end = 0
        """Bytes of the file up to which blocks are allocated."""
        self._unknown = False
        """Whether the file system allocates nothing ahead: then there is no reserve."""

    def ensure(self, size: int, ahead: int) -> bool:
        """Have so many bytes behind a file of this size; False where the disk has no more."""
        wanted = size + ahead
        # Not for each line: an eighth may be used before it is filled up again.
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
        """Give back what is behind the end of a file that is not written any more."""
        if self._end > size:
            os.ftruncate(self._fd, size)


def trim(descriptor: int) -> None:
    """The same of a file whose writer was killed."""
    os.ftruncate(descriptor, os.fstat(descriptor).st_size)


@cache
def _allocate() -> Callable[[int, int, int], int]:
    """fallocate(2) without growing the file, which Python does not have; it gives errno.

    `os.posix_fallocate` would grow it, and write zeros where the file system cannot allocate.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or libc.fallocate  # musl has the one alone
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def allocate(descriptor: int, offset: int, length: int) -> int:
        return ctypes.get_errno() if function(descriptor, _KEEP_SIZE, offset, length) else 0

    return allocate
