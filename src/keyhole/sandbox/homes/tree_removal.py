"""Removes a tree that untrusted code filled, following nothing.

The tree may be nested a hundred thousand deep, and its directories may be closed to their own
owner. So it is taken apart flat: each directory that is found moves up into one directory, which is
emptied until nothing is left. Every step is relative to a descriptor; links are removed themselves.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat

_TRIES = 8
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)
_OPEN = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(parent: int, name: str) -> None:
    """Remove the directory `name` in an opened directory. Nothing else may be using it.

    Raises FileNotFoundError, or the OSError of an entry that cannot be removed.
    """
    top = _enter(parent, name)
    try:
        _flatten(top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _flatten(top: int) -> None:
    """Empty a directory, with two descriptors and no recursion."""
    count = 0
    while names := _names(top):
        for name in names:
            if not _is_directory(top, name):
                os.unlink(name, dir_fd=top)
                continue
            here = _enter(top, name)
            try:
                for below in _names(here):
                    if _is_directory(here, below):
                        # A directory moves only if its owner can write in it.
                        os.close(_enter(here, below))
                        count += 1
                        _move(here, below, top, count)
                    else:
                        os.unlink(below, dir_fd=here)
            finally:
                os.close(here)
            os.rmdir(name, dir_fd=top)


def _move(here: int, name: str, top: int, count: int) -> None:
    # Attack: the code names its own entries like ours. The random part is not to be guessed.
    for _ in range(_TRIES):
        try:
            os.rename(name, f"{count}-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        else:
            return
    raise OSError(errno.ENOTEMPTY, "no name is free in the tree that is removed")


def _enter(parent: int, name: str) -> int:
    """A descriptor of a directory, made accessible for its owner."""
    found = os.open(name, _OPEN | os.O_DIRECTORY, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(f"/proc/self/fd/{found}", mode | stat.S_IRWXU)
    except BaseException:
        os.close(found)
        raise
    return found


def _names(directory: int) -> list[str]:
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    try:
        return os.listdir(opened)
    finally:
        os.close(opened)


def _is_directory(directory: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
