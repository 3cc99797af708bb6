"""Makes mount points, files and links in a kept tree, by descriptor (I11).

The tree is as untrusted code left it, and another run may be writing it now. Each step opens one
name without following a link. Whatever is in the way is renamed, so that nothing outside of the
tree is touched, whatever it was: a link, a pipe, a directory where a file belongs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.system.walk import open_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TRIES = 4
"""Attempts at one name. Attack: another run puts something in the way again and again."""
_DIRECTORY_MODE = 0o700
_POINT_MODE = 0o644


class KeptOwner(Struct, frozen=True):
    """The owner of what is made; None: this process."""

    uid: int
    gid: int


class KeptDirectory:
    """A kept tree, opened."""

    def __init__(self, descriptor: int, owner: KeptOwner | None) -> None:
        self._root = descriptor
        self._owner = owner

    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it."""
        with self._entered(path.split("/")):
            pass

    def make_mount_point(self, path: str) -> None:
        """Make an empty file to mount another on; a regular file that is there stays."""
        with self._parent(path) as (parent, name):
            for _ in range(_TRIES):
                kind = _kind(parent, name)
                if kind == stat.S_IFREG:
                    return
                if kind:
                    _move_aside(parent, name)
                with contextlib.suppress(FileExistsError):
                    self._write(parent, name, b"", _POINT_MODE)
                    return
            raise _contended(path)

    def write_file(self, path: str, content: bytes, mode: int) -> None:
        """Write a file in place of whatever is there. Readers see the old one or the new one."""
        with self._parent(path) as (parent, name):
            self._replace(
                parent, name, path, lambda fresh: self._write(parent, fresh, content, mode)
            )

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link in place of whatever is there."""
        with self._parent(path) as (parent, name):
            with contextlib.suppress(OSError):
                if os.readlink(name, dir_fd=parent) == target:
                    return
            self._replace(
                parent, name, path, lambda fresh: os.symlink(target, fresh, dir_fd=parent)
            )

    def _replace(self, parent: int, name: str, path: str, make: Callable[[str], None]) -> None:
        fresh = f".keyhole-{os.urandom(8).hex()}"
        try:
            make(fresh)
            for _ in range(_TRIES):
                try:
                    os.rename(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)
                except IsADirectoryError:
                    _move_aside(parent, name)
                else:
                    return
            raise _contended(path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=parent)
            raise

    def _write(self, parent: int, name: str, content: bytes, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, mode, dir_fd=parent), "wb") as file:
            os.fchmod(file.fileno(), mode)
            if self._owner:
                os.fchown(file.fileno(), self._owner.uid, self._owner.gid)
            file.write(content)

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        *above, name = path.split("/")
        with self._entered(above) as parent:
            yield parent, name

    @contextlib.contextmanager
    def _entered(self, names: list[str]) -> Iterator[int]:
        here = open_start(self._root)
        try:
            for name in names:
                below = self._enter(here, name)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _enter(self, parent: int, name: str) -> int:
        for _ in range(_TRIES):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _DIRECTORY_MODE, dir_fd=parent)
                if self._owner:
                    ids = self._owner.uid, self._owner.gid
                    os.chown(name, *ids, dir_fd=parent, follow_symlinks=False)
            try:
                below = _opened(parent, name)
            except FileNotFoundError:
                continue
            mode = os.fstat(below).st_mode
            if stat.S_ISDIR(mode):
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(f"/proc/self/fd/{below}", stat.S_IMODE(mode) | stat.S_IRWXU)
                return below
            os.close(below)
            _move_aside(parent, name)
        raise _contended(name)


def _opened(parent: int, name: str) -> int:
    return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _kind(parent: int, name: str) -> int:
    """The type of a file, as in its mode; 0: there is none."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0


def _move_aside(parent: int, name: str) -> None:
    aside = f"{name}.aside-{os.urandom(4).hex()}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)


def _contended(path: str) -> OSError:
    return OSError(f"another run keeps putting something else at ~/{path} in the kept home")
