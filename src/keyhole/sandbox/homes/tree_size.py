"""Measures the size of trees that untrusted code fills, while it may still be writing.

Disk blocks count, so that a sparse file counts as what it takes, and a file with many names counts
once for each. A directory that its owner cannot read is made readable: else it could hide anything.
One that is closed again at that very moment is not counted, and so the trees are not whole. Each
directory is opened from the one above it, and no link is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK = 512
"""Bytes of a block in stat(2)."""
MAX_ENTRIES = 2_000_000
"""Files and directories that are counted: caches of a large monorepo have a tenth."""
MAX_DEPTH = 128
"""Directories in directories that are counted; each takes a descriptor. Packages nested in packages
reach 40."""
_PAUSE_ENTRIES = 2000
_PAUSE_SECONDS = 0.002
"""The walk rests a moment after so many entries, so that it leaves the processor to others."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TreeSize(Struct, frozen=True):
    """The size of some trees together."""

    bytes: int
    whole: bool = True
    """Whether everything was counted; otherwise there are more entries, or they are nested deeper,
    than is counted, or code keeps closing a directory."""


def measure_trees(
    roots: Iterable[str], most: int = MAX_ENTRIES, *, gently: bool = False
) -> TreeSize:
    """The size of these directories. Entries that vanish meanwhile are left out."""
    walk = _Measuring(most, gently=gently)
    for root in roots:
        walk.measure(root)
    return TreeSize(walk.size, walk.whole)


class _Measuring:
    def __init__(self, left: int, *, gently: bool) -> None:
        self.size = 0
        self.whole = True
        self._left = left
        self._gently = gently

    def measure(self, root: str) -> None:
        """Measure a directory."""
        stack: list[tuple[int, list[str]]] = []
        self._enter(stack, None, root)
        try:
            while stack and self._left >= 0:
                here, below = stack[-1]
                if not below:
                    os.close(stack.pop()[0])
                    continue
                name = below.pop()
                if len(stack) >= MAX_DEPTH:
                    self.whole = False
                    continue
                self._enter(stack, here, name)
        finally:
            for descriptor, _ in stack:
                os.close(descriptor)

    def _enter(self, stack: list[tuple[int, list[str]]], parent: int | None, name: str) -> None:
        with self._reachable():
            opened = _open(parent, name)
            stack.append((opened, self._count(opened)))

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        """Go on when an entry is gone or is no directory any more. Attack: code that closes a
        directory whenever it is opened, so that its entries are not counted."""
        try:
            yield
        except PermissionError:
            self.whole = False
        except OSError:
            pass

    def _count(self, directory: int) -> list[str]:
        """Count the entries of a directory; returns the directories among them."""
        found = []
        with self._reachable(), os.scandir(directory) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    self.whole = False
                    break
                if self._gently and self._left % _PAUSE_ENTRIES == 0:
                    time.sleep(_PAUSE_SECONDS)
                try:
                    status = entry.stat(follow_symlinks=False)
                except PermissionError:
                    self.whole = False
                    break
                except OSError:
                    continue
                self.size += status.st_blocks * _BLOCK
                if stat.S_ISDIR(status.st_mode):
                    found.append(entry.name)
        return found


def _open(parent: int | None, name: str) -> int:
    path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        mode = os.fstat(path).st_mode
        if stat.S_ISDIR(mode) and mode & _NEEDED != _NEEDED:
            os.chmod(f"/proc/self/fd/{path}", stat.S_IMODE(mode) | _NEEDED)
        return os.open(".", _DIRECTORY, dir_fd=path)
    finally:
        os.close(path)


_NEEDED = stat.S_IRUSR | stat.S_IXUSR
