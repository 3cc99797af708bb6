"""Sources become mounts in a place that only the helper knows, each opened without following links.

Between the plan and this moment, hostile leftovers of an earlier run could have put a link where a
directory was. Here each source is walked component by component, cloned as a mount by descriptor,
and attached under a private tmpfs; bubblewrap then binds from there and follows nothing (I11).
"""

from __future__ import annotations

import os

from keyhole.sandbox import syscalls
from keyhole.sandbox.files.fileplan import Bind, Blob, Entry, Kind, Mask, Text
from keyhole.sandbox.files.walk import open_beneath_no_links

STAGE = "/tmp"  # noqa: S108 - covered by a tmpfs in a mount namespace of the helper's own


def stage(entries: tuple[Entry, ...], owner_map: int | None) -> dict[int, str]:
    """Mount every source; the paths they can be bound from, by the entry's number."""
    trees = {i: _clone(e, owner_map) for i, e in enumerate(entries) if isinstance(e, Bind)}
    syscalls.make_mounts_private()
    syscalls.mount_tmpfs(STAGE)
    staged = {}
    for index, entry in enumerate(entries):
        place = f"{STAGE}/{index}"
        if isinstance(entry, Bind):
            _make(place, entry.kind)
            syscalls.attach_tree(trees[index], place)
            os.close(trees[index])
        elif isinstance(entry, Mask):
            _make(place, entry.kind)
            os.chmod(place, _HIDDEN_MODES[entry.kind])
        elif isinstance(entry, Text | Blob):
            _make(place, Kind.FILE)
            content = entry.content
            with open(place, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.chmod(place, entry.mode)
        else:
            continue
        staged[index] = place
    return staged


_HIDDEN_MODES = {Kind.FILE: 0o444, Kind.DIR: 0o555}


def _clone(bind: Bind, owner_map: int | None) -> int:
    descriptor = open_beneath_no_links(bind.source)
    try:
        tree = syscalls.clone_tree(descriptor)
    finally:
        os.close(descriptor)
    if owner_map is not None and bind.writable:
        syscalls.map_owner(tree, owner_map)
    return tree


def _make(place: str, kind: Kind) -> None:
    if kind is Kind.DIR:
        os.mkdir(place, 0o755)
    else:
        os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
