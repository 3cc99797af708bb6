"""Opens a path component by component, following no symbolic link anywhere on the way (I11).

The sandbox's plan is made with it, and the helper mounts with it: a link that an earlier run left
behind (where `.git/hooks` was) stops the walk. The control socket's directory and the files of
secrets are opened with the same steps. Standard library only and quick to import.
`openat2(RESOLVE_NO_SYMLINKS)` would do the same in one call, but needs `ctypes`, a fallback for
kernels and seccomp filters that lack it, and does not say which component is the link.
"""

from __future__ import annotations

import errno
import os
import stat


class LinkInPath(OSError):
    """A symbolic link that is not followed. Either the path may contain none, and `filename` is the
    path up to it; or there were too many (`symlinks.py`)."""

    def __init__(self, path: str, why: str = "is a symbolic link") -> None:
        super().__init__(errno.ELOOP, why, path)


class Descent:
    """A descent from `/` or a directory, one name at a time; only the last step is held open."""

    def __init__(self, dir_fd: int | None = None) -> None:
        self.path = ""
        """The names that were entered, each after a slash; empty at the start."""
        self.descriptor = open_start(dir_fd)

    def enter(self, name: str, flags: int = os.O_PATH) -> None:
        """Go down by one name. Raises LinkInPath, or OSError with the path as `filename`."""
        path = f"{self.path}/{name}"
        below = open_component(self.descriptor, name, flags, path)
        os.close(self.descriptor)
        self.descriptor, self.path = below, path
        if is_link(below):
            raise LinkInPath(path)

    def take(self) -> int:
        """The last descriptor, which the caller then owns."""
        taken, self.descriptor = self.descriptor, -1
        return taken

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def open_beneath_no_links(path: str, *, dir_fd: int | None = None, flags: int = os.O_PATH) -> int:
    """A descriptor of the absolute path, below `/` or the directory `dir_fd`.

    `flags` are for the last component. Raises LinkInPath, or the OSError of the first component
    that cannot be opened, with the path up to it as `filename`.
    """
    names = components(path)
    with Descent(dir_fd) as descent:
        for number, name in enumerate(names, 1):
            descent.enter(name, flags if number == len(names) else os.O_PATH)
        return descent.take()


def components(path: str) -> list[str]:
    """The names in a canonical absolute path; ValueError for any other."""
    parts = path.removeprefix("/").split("/") if path != "/" else []
    if not path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a canonical absolute path: {path!r}")
    return parts


def read_no_links(path: str, limit: int) -> bytes:
    """Up to `limit` bytes of a regular file; OSError for anything else."""
    # O_NONBLOCK: opening a FIFO without a writer would wait for ever.
    file = open_beneath_no_links(path, flags=os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        return _read(file, limit)
    finally:
        os.close(file)


def open_start(dir_fd: int | None = None) -> int:
    """A descriptor (O_PATH) of `/`, or another one of the directory."""
    return os.open("/" if dir_fd is None else ".", os.O_PATH | os.O_CLOEXEC, dir_fd=dir_fd)


def open_component(directory: int, name: str, flags: int, path: str) -> int:
    """Open one name in a directory. `path` is for the error.

    With O_PATH a link is opened itself, as the kernel has it: ask `is_link`.
    """
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LinkInPath(path) from None
        raise OSError(error.errno, error.strerror, path) from None


def is_link(descriptor: int) -> bool:
    """Whether a symbolic link itself was opened."""
    return stat.S_ISLNK(os.fstat(descriptor).st_mode)


def _read(file: int, limit: int) -> bytes:
    pieces, left = [], limit
    while left and (piece := os.read(file, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)
