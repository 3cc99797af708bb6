"""Every place that a path leads through, symbolic links included.

Called by `Surroundings.trusts`. Knowing where a path ends is not enough: whoever can write a link
in the middle of it decides where it ends tomorrow (I11).
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_LINKS = 40
"""Links followed in one path, as the kernel's own limit (path_resolution(7))."""


def trail(path: Path) -> tuple[Path, ...] | None:
    """Each entry visited on the way, links resolved one by one; None for what has no end."""
    if not path.is_absolute():
        return None
    here, visited, links = Path("/"), [], 0
    todo = list(reversed(path.parts[1:]))
    while todo:
        part = todo.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        visited.append(step)
        try:
            target = Path(os.readlink(step))
        except (OSError, ValueError):
            here = step  # not a link, or not there at all
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        if target.is_absolute():
            here = Path("/")
        todo.extend(reversed([p for p in target.parts if p != "/"]))
    return tuple(visited)
