"""What is kept: the oldest files go when the log is larger than its bound (I9).

Only files that no living process writes are removed. Each removal is written down first, with the
digest of the file's last line, so that the verifier can tell a removal from a theft.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.audit.chain import ROTATED
from keyhole.audit.directory import try_lock
from keyhole.audit.line import digest, own_event, parse
from keyhole.audit.tail import Tail
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.audit.directory import Directory
    from keyhole.model.event import Event

REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the log is kept."""

    total: int
    files: int


def prune(directory: Directory, keep: Keep, own: str, write: Callable[[list[Event]], None]) -> None:
    """Remove the oldest files beyond the bound; `write` puts events into the chain, or raises."""
    listing = directory.listing()
    total, count = sum(file.size for file in listing), len(listing)
    for file in listing:
        if file.beyond and file.name != own:
            directory.trim(file.name)  # its writer was killed before it could
    for file in listing:
        if total <= keep.total and count <= keep.files:
            return
        if file.name == own or not _remove(directory, file.name, write):
            continue
        total, count = total - file.size, count - 1


def _remove(directory: Directory, name: str, write: Callable[[list[Event]], None]) -> bool:
    try:
        descriptor = directory.read(name)
    except OSError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        write(_farewell(directory, name))
        directory.remove(name)
    finally:
        os.close(descriptor)
    return True


def _farewell(directory: Directory, name: str) -> list[Event]:
    """What to write down: this file's removal, and removals that only this file tells of.

    A removal is worth telling for as long as the file that follows the removed one is there.
    """
    told: list[Event] = []
    head = following = ""
    tail = Tail(directory, name)
    while lines := tail.more():
        for line in lines:
            head, following = digest(line.data or b""), ""
            if not line.data or b'"audit"' not in line.data:
                continue
            record = parse(line.data)
            if record is None or not record.is_own:
                continue
            if record.reason == ROTATED:
                following = record.text("next")
            if record.reason == REMOVED and directory.has(record.text("next")):
                told.append(own_event(REMOVED, good=True, details=record.details.items()))
    details = {"file": name, "head": head, "next": following}
    return [*told, own_event(REMOVED, good=True, details=details.items())]
