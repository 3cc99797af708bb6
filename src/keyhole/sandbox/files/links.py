"""Where a path leads, one symbolic link after another (I11).

Used before a run for programs that Keyhole executes, and before and after it for links in the trees
of the sandbox: each link on the way decides where the path ends tomorrow.
"""

from __future__ import annotations

import os

from keyhole.model.value import dataclass

MAX_LINKS = 40
"""Links followed in one path, as the kernel's own limit (path_resolution(7))."""
MAX_ENTRIES = 512
"""Entries visited in one path. Attack: thousands of links, each with a target of 2,000 names that
lead up and down again, so that following them takes minutes."""


class TooManyLinks(Exception):
    """The path leads through more links than anyone follows, or in a circle."""


@dataclass(frozen=True, slots=True)
class Trail:
    """The way that a path takes."""

    end: str
    """Where it leads; whether anything is there is not said."""
    entries: tuple[str, ...]
    """Every entry on the way, links and directories alike, the end included."""
    links: tuple[tuple[str, str], ...]
    """Those that are links, each with what it says."""


def follow(path: str) -> Trail:
    """The way of an absolute path. Raises TooManyLinks."""
    here = ""
    entries: list[str] = []
    links: list[tuple[str, str]] = []
    todo = path.split("/")[::-1]
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            here = here.rpartition("/")[0]
            continue
        step = f"{here}/{part}"
        entries.append(step)
        if len(entries) > MAX_ENTRIES or len(links) > MAX_LINKS:
            raise TooManyLinks(path)
        try:
            target = os.readlink(step)
        except (OSError, ValueError):
            here = step  # not a link, or not there at all
            continue
        links.append((step, target))
        if target.startswith("/"):
            here = ""
        todo += target.split("/")[::-1]
    return Trail(here or "/", tuple(entries), tuple(links))
