"""Resolves a path as it will be inside, before the sandbox exists: by the plan and the host's
links.

Called outside, as the user, by code that mounts a file over one that programs will open. A mount
point must be named without a link in it. A link in a bound tree leads to the file that the *plan*
shows at its target, which may be another file of the host, or nothing.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.mount_plan import Bind, Entry, Symlink
from keyhole.sandbox.files.paths import is_within
from keyhole.system.symlinks import follow
from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class InsidePath(Struct, frozen=True):
    """The path without links to which a path leads, and the entry of the plan that decides its
    content."""

    path: str
    entry: Entry | None

    @property
    def is_free(self) -> bool:
        """Whether the plan mounts nothing there or above, so that a file can be made."""
        return self.entry is None

    @property
    def is_file(self) -> bool:
        """Whether a file of the host is shown there, over which another can be mounted."""
        return isinstance(self.entry, Bind) and _is(stat.S_ISREG, _behind(self.path, self.entry))


def resolve_inside(path: str, entries: Sequence[Entry]) -> InsidePath | None:
    """The target of an absolute path under this plan; None if its links form a loop."""
    try:
        end = follow(path, lambda step: _link(step, _deciding(step, entries))).end
    except LinkInPath:
        return None
    return InsidePath(end, _deciding(end, entries))


def _deciding(path: str, entries: Sequence[Entry]) -> Entry | None:
    """The last entry that is mounted at the path or above it, which covers all earlier ones."""
    return next((e for e in reversed(entries) if is_within(path, e.target)), None)


def _link(path: str, entry: Entry | None) -> str | None:
    if isinstance(entry, Symlink):
        return entry.to
    if isinstance(entry, Bind):
        behind = _behind(path, entry)
        return os.readlink(behind) if _is(stat.S_ISLNK, behind) else None
    return None


def _behind(path: str, bind: Bind) -> str:
    """The host's path behind the bind."""
    return bind.source + path.removeprefix(bind.target)


def _is(kind: Callable[[int], bool], path: str) -> bool:
    try:
        return kind(os.lstat(path).st_mode)
    except OSError:
        return False
