"""The record of a tree as it was when the sandbox began to work on it.

A change is in conflict if the person's entry is no longer as it was then. The record is made at the
start of each run; an entry that is changed in the view keeps the stamp of its first run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.changes.tree_directory import stamp_of
from keyhole.model.errors import Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RECORDED = 2_000_000
"""Entries of a tree; the walk that plans a sandbox has the same bound."""


def record_tree(tree: str) -> dict[str, str]:
    """The stamps of every entry, by its path in the tree. Follows no link."""
    found: dict[str, str] = {}
    todo = [""]
    while todo:
        where = todo.pop()
        try:
            with os.scandir(f"{tree}/{where}") as entries:
                for entry in entries:
                    name = f"{where}{entry.name}"
                    try:
                        found[name] = stamp_of(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
                    if found[name] == "d":
                        todo.append(f"{name}/")
        except OSError:
            continue  # it cannot be read inside either; or it is gone
        if len(found) > MAX_RECORDED:
            raise Refused(
                f"{visible(tree)} has too many files for a review; name narrower directories in "
                "sandbox.writable"
            )
    return found


def write_record(path: str, record: Mapping[str, str]) -> None:
    """Write it in one step: no name holds a NUL."""
    temporary = f"{path}.new"
    with open(temporary, "wb") as file:
        file.write(b"\0".join(os.fsencode(text) for pair in record.items() for text in pair))
    os.replace(temporary, path)


def read_record(path: str) -> dict[str, str]:
    """Read what `write_record` wrote; empty if there is none."""
    try:
        with open(path, "rb") as file:
            texts = file.read().decode("utf-8", "surrogateescape").split("\0")
    except FileNotFoundError:
        return {}
    return dict(zip(texts[::2], texts[1::2], strict=False))
