"""Replaces or takes away an entry of the person's only if it is still the one that was judged.

Attack by accident: between a look at the entry and a rename over it, the person saves the file, and
that version would be lost. So two names are exchanged in one step, and the entry that came out is
looked at: if it is another one, it goes back. Used by `transaction.py`. Every name is relative to
an open directory, and no link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from keyhole.changes.tree_directory import stamp_of
from keyhole.system.syscalls import exchange_names, rename_new

if TYPE_CHECKING:
    from collections.abc import Callable

_CANNOT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a file system that knows neither kind of rename."""


def put_in_place(
    where: int,
    beside: str,
    own: str,
    before: str,
    remove: Callable[[int, str], None] | None = None,
) -> bool:
    """Give the entry `beside` its place, if the entry there has the stamp `before`; with an empty
    one, if nothing is there. Otherwise the person's entry stays. Nothing is left beside it;
    `remove` removes the entry that was replaced."""
    if not before:
        done = _rename_new(where, beside, own)
        drop(where, beside)
        return done
    ours = stamp_at(where, beside)
    exchanged = _exchange(where, beside, own, before)
    if exchanged is None:
        return _replace_at_once(where, beside, own, before)
    if not exchanged:
        _put_back(where, beside, own, ours)
    elif remove is not None:
        remove(where, beside)
    drop(where, beside)
    return exchanged


def take_away(where: int, own: str, beside: str, before: str) -> bool:
    """Rename an entry to `beside`, if it has the stamp `before`; otherwise it stays."""
    try:
        os.rename(own, beside, src_dir_fd=where, dst_dir_fd=where)
    except FileNotFoundError:
        return False
    if stamp_at(where, beside) == before:
        return True
    bring_back(where, beside, own)
    return False


def bring_back(where: int, beside: str, own: str) -> None:
    """Give an entry of the person's its name again, unless they have made a newer one."""
    _rename_new(where, beside, own)
    drop(where, beside)


def settle_exchange(where: int, beside: str, own: str, before: str, ours: str) -> None:
    """Finish an exchange of a process that was killed. `ours` is the stamp of its new entry."""
    if stamp_at(where, own) == ours and stamp_at(where, beside) not in ("", before):
        exchange_names(where, beside, own)
    drop(where, beside)


def stamp_at(where: int, name: str) -> str:
    """The stamp of an entry of an open directory; empty if there is none."""
    try:
        return stamp_of(os.stat(name, dir_fd=where, follow_symlinks=False))
    except FileNotFoundError:
        return ""


def drop(where: int, name: str) -> None:
    """Remove a file or link, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=where)


def _rename_new(where: int, beside: str, own: str) -> bool:
    try:
        rename_new(where, beside, own)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        with contextlib.suppress(FileExistsError):
            os.link(beside, own, src_dir_fd=where, dst_dir_fd=where, follow_symlinks=False)
            return True
        return False
    return True


def _exchange(where: int, beside: str, own: str, before: str) -> bool | None:
    """Whether the entry that came out is the judged one; None if the file system cannot."""
    try:
        exchange_names(where, beside, own)
    except FileNotFoundError:
        return False  # the person removed it
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return None
    return stamp_at(where, beside) == before


def _put_back(where: int, beside: str, own: str, ours: str) -> None:
    if stamp_at(where, beside) == ours:
        return  # nothing was exchanged
    try:
        exchange_names(where, beside, own)
    except FileNotFoundError:
        bring_back(where, beside, own)
        return
    if stamp_at(where, beside) != ours:
        # The person saved it once more meanwhile: the newest has the name.
        exchange_names(where, beside, own)


def _replace_at_once(where: int, beside: str, own: str, before: str) -> bool:
    if stamp_at(where, own) != before:
        drop(where, beside)
        return False
    os.rename(beside, own, src_dir_fd=where, dst_dir_fd=where)
    return True
