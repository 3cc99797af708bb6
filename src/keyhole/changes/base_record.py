"""The record of a tree as it was when the sandbox began to work on it.

A change is in conflict if the person's entry is no longer as it was then. The record is made at the
start of each run; an entry that is changed in the view keeps the stamp of its first run. For git's
index it has the entries as well: git writes it again without a change of the person's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.changes.git_index import MAX_INDEX, entries_digest, is_index
from keyhole.changes.tree_directory import TreeDirectory, stamp_of
from keyhole.model.errors import Refused
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RECORDED = 2_000_000
"""Entries of a tree; the walk that plans a sandbox has the same bound."""


_ENTRIES = "/entries"
"""After the path of an index, the key of its entries: no file has a path below a file."""


def keys_of(name: str) -> tuple[str, ...]:
    """The keys under which a record has an entry."""
    return (name, f"{name}{_ENTRIES}") if is_index(name) else (name,)


def note_entry(record: dict[str, str], tree: TreeDirectory, name: str) -> None:
    """Record one entry as it is now."""
    record[name] = stamp_of(tree.look(name))
    if is_index(name):
        record[f"{name}{_ENTRIES}"] = index_entries(tree, name)


def is_as_recorded(record: Mapping[str, str], tree: TreeDirectory, name: str, stamp: str) -> bool:
    """Whether the person's entry, which has this stamp now, is as it was; or an index that git
    wrote again with the same entries."""
    if record.get(name, "") == stamp:
        return True
    entries = record.get(f"{name}{_ENTRIES}", "") if is_index(name) else ""
    return bool(entries) and index_entries(tree, name) == entries


def index_entries(tree: TreeDirectory, name: str) -> str:
    """The digest of an index's entries; empty if it cannot be read."""
    try:
        data = tree.read(name, MAX_INDEX + 1)
    except OSError:
        return ""
    return entries_digest(data) if len(data) <= MAX_INDEX else ""


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
    with TreeDirectory(tree) as opened:
        for name in [name for name in found if name.endswith("/index") and is_index(name)]:
            found[f"{name}{_ENTRIES}"] = index_entries(opened, name)
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
