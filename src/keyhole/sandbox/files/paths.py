"""Paths as text: canonical, absolute, compared by component. Pure except `canonical`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_within(path: str, tree: str) -> bool:
    """Whether the path is the tree or lies below it."""
    return path == tree or is_below(path, tree)


def is_below(path: str, tree: str) -> bool:
    """Whether the path lies below the tree."""
    return path.startswith(tree if tree == "/" else f"{tree}/")


def depth(path: str) -> int:
    """The number of names in it."""
    return path.count("/") if path != "/" else 0


def absolute(text: str, project: str, home: str) -> str:
    """A path of the policy: `~` is the home, and a relative path starts at the policy's
    directory."""
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    path = os.path.normpath(os.path.join(project, text))
    return "/" + path.lstrip("/")  # two slashes at the start survive normpath


def canonical(path: str) -> str:
    """The same path with the system's own link at the top resolved (`/home` to `var/home`)."""
    top, slash, rest = path[1:].partition("/")
    if not top or not os.path.islink(f"/{top}"):
        return path
    return os.path.realpath(f"/{top}") + slash + rest


def parents(path: str) -> Iterator[str]:
    """The directories that contain it, the nearest first, `/` last."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path
