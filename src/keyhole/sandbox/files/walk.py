"""Open a path component by component, following no symbolic link anywhere on the way (I11).

Called when the plan is made and again, in the helper, when a source is mounted: whatever an earlier
run left behind (a link where `.git/hooks` was) stops the walk. Standard library only and quick to
import. `openat2(RESOLVE_NO_SYMLINKS)` would do the same in one call, but needs `ctypes`, a fallback
for kernels and seccomp filters that lack it, and does not say which component is the link.
"""

from __future__ import annotations

import errno
import os
import stat


class LinkInPath(OSError):
    """A component of the path is a symbolic link; `filename` is the path up to and with it."""

    def __init__(self, link: str) -> None:
        super().__init__(errno.ELOOP, "is a symbolic link", link)


def open_beneath_no_links(path: str, *, dir_fd: int | None = None, flags: int = os.O_PATH) -> int:
    """A descriptor of what lies at the absolute path, below `/` or the directory `dir_fd`.

    `flags` are for the last component. Raises LinkInPath, or the OSError of the first component
    that cannot be opened, with the path up to it as `filename`.
    """
    here = os.open(".", os.O_PATH | os.O_CLOEXEC, dir_fd=dir_fd) if dir_fd is not None else _root()
    walked = ""
    parts = components(path)
    try:
        for index, part in enumerate(parts):
            walked = f"{walked}/{part}"
            chosen = flags if index == len(parts) - 1 else os.O_PATH
            following = _step(part, here, chosen, walked)
            os.close(here)
            here = following
            # With O_PATH the kernel opens a final link itself rather than refusing it.
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise LinkInPath(walked)
    except BaseException:
        os.close(here)
        raise
    return here


def components(path: str) -> list[str]:
    """The names in a canonical absolute path; ValueError for any other."""
    parts = path.removeprefix("/").split("/") if path != "/" else []
    if not path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"not a canonical absolute path: {path!r}")
    return parts


def read_no_links(path: str, limit: int) -> bytes:
    """Up to `limit` bytes of a regular file; OSError for anything else."""
    # O_NONBLOCK: opening a FIFO that nobody writes would wait for ever.
    file = open_beneath_no_links(path, flags=os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        return _read(file, limit)
    finally:
        os.close(file)


def _read(file: int, limit: int) -> bytes:
    pieces, left = [], limit
    while left and (piece := os.read(file, left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _root() -> int:
    return os.open("/", os.O_PATH | os.O_CLOEXEC)


def _step(part: str, here: int, flags: int, walked: str) -> int:
    try:
        return os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LinkInPath(walked) from None
        raise OSError(error.errno, error.strerror, walked) from None
