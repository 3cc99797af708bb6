"""Writes the files of a session that an engine mounts to a directory of ours, once.

Called just before the sandbox's container is made. Texts, masks and certificates become files. The
host's own trees are opened once more without following a link, and `entrypoint.py` asserts inside
that exactly these files are mounted (I11). No secret is among them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.mount_plan import (
    BinaryFile,
    Bind,
    Mask,
    MountKind,
    TextFile,
    entry_bytes,
)
from keyhole.system.walk import open_beneath_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyhole.sandbox.files.mount_plan import Entry

_HIDDEN_MODES = {MountKind.FILE: 0o444, MountKind.DIR: 0o555}


class MountSources(Struct, frozen=True):
    """The source of each entry, by its number, and the file there, by the entry's target."""

    sources: dict[int, str]
    same: dict[str, tuple[int, int]]
    owners: dict[str, int]
    """The owner of the file at a target, on the host."""


def write_mount_sources(directory: Path, entries: Iterable[tuple[int, Entry]]) -> MountSources:
    """Write the files that must be written. Raises OSError, also LinkInPath, when a source is
    wrong."""
    sources: dict[int, str] = {}
    same: dict[str, tuple[int, int]] = {}
    owners: dict[str, int] = {}
    for number, entry in entries:
        if isinstance(entry, Bind):
            sources[number] = entry.source
            descriptor = open_beneath_no_links(entry.source)
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            same[entry.target] = (status.st_dev, status.st_ino)
            owners[entry.target] = status.st_uid
        elif isinstance(entry, Mask | TextFile | BinaryFile):
            sources[number] = str(directory / str(number))
            _write(sources[number], entry)
    return MountSources(sources, same, owners)


def _write(place: str, entry: Mask | TextFile | BinaryFile) -> None:
    if isinstance(entry, Mask):
        if entry.kind is MountKind.DIR:
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        os.chmod(place, _HIDDEN_MODES[entry.kind])
        return
    with open(place, "xb") as file:
        file.write(entry_bytes(entry))
    os.chmod(place, entry.mode)
