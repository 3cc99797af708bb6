"""Follows a path, one symbolic link after another (I11).

Used for programs that Keyhole executes, for settings of the host that it trusts, for links in the
trees of a sandbox, and for the files of secrets: each link on the way decides where the path leads
tomorrow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from keyhole.system.walk import LinkInPath

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_LINKS = 40
"""Links followed in one path, as the kernel's own limit (path_resolution(7))."""
MAX_ENTRIES = 512
"""Entries visited in one path. Attack: thousands of links, each with a target of 2,000 names that
lead up and down again, so that following them takes minutes."""

TOO_MANY = "leads through too many links"


class Position(Protocol):
    """The present position of a resolution."""

    def enter(self, name: str) -> str | None:
        """Read a name here: returns the target of a link; otherwise goes there."""

    def leave(self) -> None:
        """Go up by one; `/` is its own parent."""

    def restart(self) -> None:
        """Go to `/`."""


def resolve(path: str, position: Position) -> None:
    """Move a position along an absolute path, as the kernel would go. Raises LinkInPath."""
    entries = links = 0
    todo = path.split("/")[::-1]
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            position.leave()
            continue
        entries += 1
        if entries > MAX_ENTRIES:
            raise LinkInPath(path, TOO_MANY)
        target = position.enter(name)
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            raise LinkInPath(path, TOO_MANY)
        if target.startswith("/"):
            position.restart()
        todo += target.split("/")[::-1]


class Trail(Struct, frozen=True):
    """The way that a path takes."""

    end: str
    """The final target, which need not exist."""
    entries: tuple[str, ...]
    """Every entry on the way, links and directories alike, the end included."""
    links: tuple[tuple[str, str], ...]
    """The links among them, each with its target."""


def read_link(path: str) -> str | None:
    """The target of a link; None for any other file and for a missing one."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def follow(path: str, read: Callable[[str], str | None] = read_link) -> Trail:
    """The steps of an absolute path; `read` returns the targets of links. Raises LinkInPath."""
    way = _Way(read)
    resolve(path, way)
    return Trail(way.here or "/", tuple(way.entries), tuple(way.links))


class _Way:
    """A position by its name alone: nothing is opened."""

    def __init__(self, read: Callable[[str], str | None]) -> None:
        self.here = ""
        self.entries: list[str] = []
        self.links: list[tuple[str, str]] = []
        self._read = read

    def enter(self, name: str) -> str | None:
        step = f"{self.here}/{name}"
        self.entries.append(step)
        target = self._read(step)
        if target is None:
            self.here = step
        else:
            self.links.append((step, target))
        return target

    def leave(self) -> None:
        self.here = self.here.rpartition("/")[0]

    def restart(self) -> None:
        self.here = ""
