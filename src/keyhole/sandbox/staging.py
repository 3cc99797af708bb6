"""Sources become mounts in a place that only the helper knows, each opened without following links.

Between the plan and this moment, hostile leftovers of an earlier run could have put a link where a
directory was. Here each source is walked component by component, cloned as a mount by descriptor,
and attached under a private tmpfs; bubblewrap then binds from there and follows nothing (I11).
"""

from __future__ import annotations

import os

from keyhole.sandbox import syscalls
from keyhole.sandbox.files.fileplan import Bind, Blob, Entry, Kind, Mask, Symlink, Text
from keyhole.sandbox.files.walk import open_beneath_no_links
from keyhole.sandbox.gather import gathered

STAGE = "/tmp"  # noqa: S108 - covered by a tmpfs in a mount namespace of the helper's own


GATHERED = f"{STAGE}/together"
"""Where the files of /etc are put together, under their own names."""


def stage(entries: tuple[Entry, ...], owner_map: int | None) -> dict[int, str]:
    """Mount every source; the paths they can be bound from, by the entry's number."""
    trees = {i: _clone(e, owner_map) for i, e in enumerate(entries) if isinstance(e, Bind)}
    syscalls.make_mounts_private()
    syscalls.mount_tmpfs(STAGE)
    before = os.umask(0o022)  # directories that we make are for the sandbox's user to read
    try:
        return _filled(entries, trees)
    finally:
        os.umask(before)


def _filled(entries: tuple[Entry, ...], trees: dict[int, int]) -> dict[int, str]:
    staged = {}
    together = gathered(entries)
    for index, entry in enumerate(entries):
        place = f"{STAGE}/{index}"
        if isinstance(entry, Bind):
            place = _place_together(entry.target) if index in together else place
            _make(place, entry.kind)
            syscalls.attach_tree(trees[index], place)
            os.close(trees[index])
            staged[index] = place
            continue
        elif isinstance(entry, Mask):
            _make(place, entry.kind)
            os.chmod(place, _HIDDEN_MODES[entry.kind])
        elif isinstance(entry, Text | Blob):
            _make(place, Kind.FILE)
            content = entry.content
            with open(place, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.chmod(place, entry.mode)
        elif isinstance(entry, Symlink) and index in together:
            os.symlink(entry.to, _place_together(entry.target))
            continue
        else:
            continue
        staged[index] = _mounted_together(entry, place) if index in together else place
    return staged


def _place_together(target: str) -> str:
    place = f"{GATHERED}{target}"
    os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
    return place


def _mounted_together(entry: Mask | Text | Blob, made: str) -> str:
    place = _place_together(entry.target)
    _make(place, entry.kind if isinstance(entry, Mask) else Kind.FILE)
    descriptor = os.open(made, os.O_PATH | os.O_CLOEXEC)
    tree = syscalls.clone_tree(descriptor)
    syscalls.attach_tree(tree, place)
    os.close(tree)
    os.close(descriptor)
    return place


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
