"""A tree whose entries are reached name by name, following no symbolic link (I11).

Both sides of a review are reached through it: the layer, which hostile code has written, and the
person's tree, in which an earlier run may have left links. Every call is relative to an open
directory, so that a directory that is swapped for a link meanwhile leads nowhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from keyhole.changes.entry import EntryKind
from keyhole.system.walk import components, open_beneath_no_links

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 128
"""Directories above an entry; a deeper one is reported and not read."""

_PIECE = 1 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def kind_of(found: os.stat_result | None) -> EntryKind:
    """The kind of an entry by its mode."""
    if found is None:
        return EntryKind.ABSENT
    return _KINDS.get(stat.S_IFMT(found.st_mode), EntryKind.SPECIAL)


_KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFLNK: EntryKind.LINK,
    stat.S_IFDIR: EntryKind.DIRECTORY,
}


def stamp_of(found: os.stat_result | None) -> str:
    """A text that changes when the entry does; empty if there is none.

    The change time is not in it: a hard link made elsewhere (pnpm, a backup) changes that.
    """
    if found is None:
        return ""
    kind = kind_of(found)
    if kind is EntryKind.DIRECTORY:
        return "d"
    executable = "x" if found.st_mode & 0o100 else "-"
    return f"{kind[0]}{executable}{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"


class TreeDirectory:
    """The directory at the top of a tree."""

    def __init__(self, path: str) -> None:
        """Raises LinkInPath, or OSError."""
        self.path = path
        self.descriptor = open_beneath_no_links(path, flags=os.O_RDONLY | os.O_DIRECTORY)
        self._last: tuple[str, int] | None = None

    def close(self) -> None:
        """Close the directories."""
        self._forget_last()
        os.close(self.descriptor)

    def __enter__(self) -> TreeDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def directory(self, name: str, make: Callable[[int, str], None] | None = None) -> int:
        """A descriptor of a directory in the tree, which belongs to this object and is valid until
        the next call. `make` makes one that is missing."""
        if not name:
            return self.descriptor
        if self._last is not None and self._last[0] == name:
            return self._last[1]
        parts = components(f"/{name}")
        if len(parts) > MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, "is too deep", name)
        at = os.dup(self.descriptor)
        try:
            for part in parts:
                if make is not None:
                    make(at, part)
                below = self._enter(at, part)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        self._forget_last()
        self._last = (name, at)
        return at

    def _enter(self, where: int, own: str) -> int:
        """Open a directory in another one."""
        return os.open(own, _DIRECTORY, dir_fd=where)

    def place(self, name: str) -> tuple[int, str]:
        """The directory that an entry lies in, and the entry's own name."""
        above, _, own = name.rpartition("/")
        return self.directory(above), own

    def look(self, name: str) -> os.stat_result | None:
        """The entry itself; None if there is none, or if something on the way is no directory."""
        try:
            where, own = self.place(name)
            return os.stat(own, dir_fd=where, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                return None
            raise

    def listing(self, name: str) -> dict[str, os.stat_result]:
        """The entries of a directory; none if it is no directory."""
        try:
            where = self.directory(name)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            if error.errno == errno.ELOOP:
                return {}
            raise
        found = {}
        with os.scandir(where) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def open(self, name: str) -> int:
        """A descriptor of a regular file, for reading. Raises OSError for anything else."""
        where, own = self.place(name)
        file = os.open(own, _FILE, dir_fd=where)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "is not a regular file", name)
        return file

    def target(self, name: str) -> str:
        """The target of a link."""
        where, own = self.place(name)
        return os.readlink(own, dir_fd=where)

    def read(self, name: str, limit: int) -> bytes:
        """Up to `limit` bytes of a regular file."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read(limit)

    def _forget_last(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
            self._last = None

    def changed(self) -> None:
        """Directories were removed or renamed: the one that is held open may be one of them."""
        self._forget_last()


def same_content(one: int, other: int) -> bool:
    """Whether two open files have the same bytes."""
    while True:
        left, right = os.read(one, _PIECE), os.read(other, _PIECE)
        while left and len(right) < len(left) and (more := os.read(other, len(left) - len(right))):
            right += more
        if left != right:
            return False
        if not left:
            return True


def copy_content(source: int, target: int) -> None:
    """Copy a file's bytes, sharing or skipping blocks where the file systems can: a sparse file
    stays sparse."""
    size = os.fstat(source).st_size
    if size <= _PIECE:
        # Not by `copy_file_range`, which starts to write the source out; removing a file then waits
        # for the disk.
        os.pwrite(target, os.pread(source, size, 0), 0)
        return
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole is left
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        at = _copy_range(source, target, at, min(end, size))


def _copy_range(source: int, target: int, at: int, end: int) -> int:
    while at < end:
        try:
            done = os.copy_file_range(source, target, end - at, at, at)
        except OSError:
            done = os.pwrite(target, os.pread(source, min(end - at, _PIECE), at), at)
        if not done:
            return end  # it was made shorter meanwhile
        at += done
    return at
