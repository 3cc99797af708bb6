"""Where a path leads inside, before there is an inside: the plan's links and the host's, followed.

Called outside, as the user, by whoever wants to put a file over one that programs will open. A
mount point must be named without a link in it, and a link that stays in a bound tree leads to what
the *plan* shows at its end, which may be another file of the host, or nothing.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Bind, Entry, Symlink
from keyhole.sandbox.files.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_LINKS = 40
"""Links on one way, as the kernel has it: a circle ends here."""


@dataclass(frozen=True, slots=True)
class Place:
    """The end of a way: its path without links, and the entry that decides what is there."""

    path: str
    entry: Entry | None

    @property
    def is_free(self) -> bool:
        """Whether the plan puts nothing there, nor above it: a file can be made there."""
        return self.entry is None

    @property
    def is_file(self) -> bool:
        """Whether a file of the host is shown there, over which another can be mounted."""
        return isinstance(self.entry, Bind) and _is(stat.S_ISREG, _behind(self.path, self.entry))


def place_of(path: str, entries: Sequence[Entry]) -> Place | None:
    """Where an absolute path leads under this plan; None where links run in a circle."""
    here, ahead, links = "", path.split("/")[::-1], 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = here.rpartition("/")[0]
            continue
        step = f"{here}/{name}"
        to = _link(step, _deciding(step, entries))
        if to is None:
            here = step
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        here = "" if to.startswith("/") else here
        ahead += to.split("/")[::-1]
    return Place(here or "/", _deciding(here or "/", entries))


def _deciding(path: str, entries: Sequence[Entry]) -> Entry | None:
    """The last that was mounted at the path or above it covers all that came before."""
    return next((e for e in reversed(entries) if is_within(path, e.target)), None)


def _link(path: str, entry: Entry | None) -> str | None:
    if isinstance(entry, Symlink):
        return entry.to
    if isinstance(entry, Bind):
        behind = _behind(path, entry)
        return os.readlink(behind) if _is(stat.S_ISLNK, behind) else None
    return None


def _behind(path: str, bind: Bind) -> str:
    """The host's path of what the bind shows."""
    return bind.source + path.removeprefix(bind.target)


def _is(kind: Callable[[int], bool], path: str) -> bool:
    try:
        return kind(os.lstat(path).st_mode)
    except OSError:
        return False
