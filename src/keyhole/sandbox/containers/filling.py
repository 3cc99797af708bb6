"""The files of a session's own that an engine mounts: written to a directory of ours, once.

Called just before the sandbox's container is made. Texts, masks and certificates become files; the
host's own trees are opened once more without following a link, and what was found there is what
`entry.py` insists on inside (I11). No secret is among them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.files.fileplan import Bind, Blob, Kind, Mask, Text
from keyhole.sandbox.files.walk import open_beneath_no_links

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from keyhole.sandbox.files.fileplan import Entry

_HIDDEN_MODES = {Kind.FILE: 0o444, Kind.DIR: 0o555}


@dataclass(frozen=True, slots=True)
class Filled:
    """Where each entry is mounted from, by its number, and what lies there, by its target."""

    sources: dict[int, str]
    same: dict[str, tuple[int, int]]
    owners: dict[str, int]
    """Who owns what lies at a target, on the host."""


def fill(directory: Path, entries: Iterable[tuple[int, Entry]]) -> Filled:
    """Write what must be written; OSError, LinkInPath among them, when a source is not right."""
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
        elif isinstance(entry, Mask | Text | Blob):
            sources[number] = str(directory / str(number))
            _write(sources[number], entry)
    return Filled(sources, same, owners)


def _write(place: str, entry: Mask | Text | Blob) -> None:
    if isinstance(entry, Mask):
        if entry.kind is Kind.DIR:
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
        os.chmod(place, _HIDDEN_MODES[entry.kind])
        return
    content = entry.content
    with open(place, "xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    os.chmod(place, entry.mode)
