"""A bounded walk over a tree that the sandbox could have written. Follows no link.

Used when the plan is made (sockets, credentials, repositories) and for the comparison after a run.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.model.errors import KeyholeError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_ENTRIES = 2_000_000
"""Files and directories looked at in one walk: a large monorepo with its dependencies has half."""
MAX_SECONDS = 20.0
"""Time for one walk; two million entries take some five seconds from a warm cache."""
MAX_PATH = 2048
"""Length of a directory's path; over a longer one nothing could be mounted (PATH_MAX is 4096)."""


class TreeTooLarge(KeyholeError):
    """The tree has more entries, or takes longer, than a walk may."""


class DirectoryListing(Struct):
    """One directory. Names removed from `dirs` are not descended into."""

    path: str
    dirs: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    specials: list[str] = field(default_factory=list)
    closed: bool = False
    """Whether it could not be read, or its path is too long: its content is unknown."""


class WalkBudget:
    """The remaining budget, which the trees of one plan share."""

    def __init__(self, entries: int = MAX_ENTRIES, seconds: float = MAX_SECONDS) -> None:
        self._entries = entries
        self._deadline = time.monotonic() + seconds

    def spend(self, entries: int) -> None:
        """Count entries. Raises TreeTooLarge when nothing is left."""
        self._entries -= entries + 1
        if self._entries < 0 or time.monotonic() > self._deadline:
            raise TreeTooLarge


def walk_tree(root: str, budget: WalkBudget) -> Iterator[DirectoryListing]:
    """Every directory of the tree. Entries that vanish meanwhile are skipped.

    Level by level: filling one directory cannot keep the top of a project from being searched.
    """
    todo = deque([root])
    while todo:
        listing = _read(todo.popleft())
        if listing is None:
            continue
        budget.spend(
            len(listing.dirs) + len(listing.files) + len(listing.links) + len(listing.specials)
        )
        yield listing
        prefix = listing.path.rstrip("/")
        todo.extend(f"{prefix}/{name}" for name in listing.dirs)


def _read(path: str) -> DirectoryListing | None:
    listing = DirectoryListing(path)
    if len(os.fsencode(path)) > MAX_PATH:
        listing.closed = True
        return listing
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    listing.links.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    listing.dirs.append(entry.name)
                elif entry.is_file(follow_symlinks=False):
                    listing.files.append(entry.name)
                else:
                    listing.specials.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        listing.closed = True
    return listing
