"""Removes the oldest files when the log is larger than its bound (I9).

Only files without a living writer are removed. Each removal is recorded first, with the digest of
the file's last line, so that the verifier can tell it from tampering.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.audit.chain import ROTATED
from keyhole.audit.log_directory import try_lock
from keyhole.audit.log_line import line_digest, own_event, parse_line
from keyhole.audit.tail import FileTail

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.audit.log_directory import LogDirectory
    from keyhole.model.event import Event

REMOVED = "removed"


class RetentionLimit(Struct, frozen=True):
    """The limits of the log that is kept."""

    total: int
    files: int


def prune(
    directory: LogDirectory, keep: RetentionLimit, own: str, write: Callable[[list[Event]], None]
) -> None:
    """Remove the oldest files beyond the bound; `write` adds events to the chain, or raises."""
    listing = directory.listing()
    total, count = sum(file.size for file in listing), len(listing)
    for file in listing:
        if file.beyond and file.name != own:
            directory.trim(file.name)  # its writer was killed before it released the reserve
    for file in listing:
        if total <= keep.total and count <= keep.files:
            return
        if file.name == own or not _remove(directory, file.name, write):
            continue
        total, count = total - file.size, count - 1


def _remove(directory: LogDirectory, name: str, write: Callable[[list[Event]], None]) -> bool:
    try:
        descriptor = directory.read(name)
    except OSError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        write(_removal_events(directory, name))
        directory.remove(name)
    finally:
        os.close(descriptor)
    return True


def _removal_events(directory: LogDirectory, name: str) -> list[Event]:
    """The events to record: this file's removal, and removals that only this file records.

    A removal must stay recorded for as long as the file that follows the removed one exists.
    """
    told: list[Event] = []
    head = following = ""
    tail = FileTail(directory, name)
    while lines := tail.more():
        for line in lines:
            head, following = line_digest(line.data or b""), ""
            if not line.data or b'"audit"' not in line.data:
                continue
            record = parse_line(line.data)
            if record is None or not record.is_own:
                continue
            if record.reason == ROTATED:
                following = record.text("next")
            if record.reason == REMOVED and directory.has(record.text("next")):
                told.append(own_event(REMOVED, good=True, details=record.details.items()))
    details = {"file": name, "head": head, "next": following}
    return [*told, own_event(REMOVED, good=True, details=details.items())]
