"""A directory of Keyhole's own in which entries wait to be removed.

Removing a file can take milliseconds (a disk that is told of each free block), renaming one does
not. So an apply moves what it no longer needs here, and the trash is emptied when there is time.
Its content is hostile: directories without permissions, and thousands of levels.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import stat
import time

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Trash:
    """The directory, open. It is on the file system of the entries that it takes."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self._own = os.open(path, _DIRECTORY)
        session = secrets.token_hex(6)
        self._names = (f"{session}-{number}" for number in itertools.count())

    def close(self) -> None:
        """Close the directory."""
        os.close(self._own)

    def take(self, where: int, name: str, *, directory: bool = False) -> None:
        """Move an entry here. Raises OSError if it is on another file system."""
        if directory:
            permit_owner(where, name)
        os.rename(name, next(self._names), src_dir_fd=where, dst_dir_fd=self._own)

    def empty(self, seconds: float | None = None) -> bool:
        """Remove everything, for so long at most. Returns whether nothing is left.

        A directory in a directory is moved to the top before it is emptied, so that no path and no
        stack grows.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while names := os.listdir(self._own):
            for name in names:
                if not self._remove(name, end):
                    return False
        return True

    def _remove(self, name: str, end: float | None) -> bool:
        if end is not None and time.monotonic() > end:
            return False
        try:
            os.unlink(name, dir_fd=self._own)
        except IsADirectoryError:
            pass
        except FileNotFoundError:
            return True  # another process empties it, too
        else:
            return True
        permit_owner(self._own, name)
        inside = os.open(name, _DIRECTORY, dir_fd=self._own)
        try:
            for inner in os.listdir(inside):
                if end is not None and time.monotonic() > end:
                    return False
                try:
                    os.unlink(inner, dir_fd=inside)
                except IsADirectoryError:
                    self.take(inside, inner, directory=True)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=self._own)
        return True


def permit_owner(where: int, name: str) -> None:
    """Moving and emptying a directory needs permissions that its owner may have removed."""
    opened = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
    try:
        mode = stat.S_IMODE(os.fstat(opened).st_mode) & 0o777
        # Of this very directory, no link's target.
        os.chmod(f"/proc/self/fd/{opened}", mode | stat.S_IRWXU)
    finally:
        os.close(opened)
