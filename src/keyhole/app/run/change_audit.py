"""Writes down what a person did with changes that were held for review (I8).

Used by `keyhole apply`, `discard` and `undo`, and by a run that finishes what a killed one of them
began. The log is opened before the changes are, so that without a log nothing is applied, nor
finished. The store keeps a note of an act until its event was written.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from keyhole.app.session.session_events import new_session
from keyhole.audit.log import AuditLog
from keyhole.model.decision import Verdict
from keyhole.model.errors import ResourceUnusable
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from keyhole.changes.change_store import ChangeStore
    from keyhole.changes.entry import FileChange

MAX_NAMED = 16
"""Paths that one event names; the others are counted. An event is small."""
MAX_NAMES = 900
"""Bytes of all of them together, as JSON: the log cuts a longer text."""
MAX_ERROR = 200
"""Characters of the reason why an act failed."""


class ChangeAudit:
    """The log, open, for one act on one project's changes."""

    def __init__(self, log: AuditLog, store: ChangeStore) -> None:
        self._log = log
        self._store = store

    def record(self, act: str, changes: Sequence[FileChange] = (), **details: str | int) -> None:
        """Record that these changes were applied, discarded or restored. Files that the host may
        execute are named first."""
        ordered = sorted(changes, key=lambda change: change.executed is None)
        executed = sum(change.executed is not None for change in changes)
        table: dict[str, str | int] = {"project": self._store.project, **details}
        if changes:
            named = _fitting(ordered)
            table |= {"changes": len(changes), "host-may-execute": executed}
            # A list as JSON: names are hostile, and may look like several, or like a count.
            table |= {"paths": json.dumps(named), "unnamed": len(changes) - len(named)}
        self._write(Verdict.ALLOW, act, table)
        self._store.note_recorded()

    @contextlib.contextmanager
    def recording_failure(self, act: str) -> Iterator[None]:
        """Record an act that fails, and raise its error again."""
        try:
            yield
        except (OSError, ResourceUnusable) as error:
            table = {"project": self._store.project, "error": str(error)[:MAX_ERROR]}
            self._write(Verdict.DENY, f"{act}-failed", table)
            self._store.note_recorded()
            raise

    def record_recovered(self) -> None:
        """Record acts of killed processes: those that were finished or taken back just now, and one
        that ended without its event."""
        project, left = self._store.project, self._store.unrecorded
        for act, count in self._store.recovered:
            self._write(Verdict.ALLOW, f"{act}-recovered", {"project": project, "steps": count})
        if left and left not in [act for act, _ in self._store.recovered]:
            self._write(Verdict.ALLOW, f"{left}-unrecorded", {"project": project})
        self._store.note_recorded()

    def _write(self, verdict: Verdict, reason: str, details: Mapping[str, str | int]) -> None:
        event = Event(EventKind.CHANGES, verdict, reason, details=tuple(details.items()))
        # The session that last worked on the view.
        self._log.record(self._store.session or new_session(), event)
        self._log.flush()
        if not self._log.admitting:
            raise ResourceUnusable("the audit log cannot be written")


@contextlib.contextmanager
def auditing_changes(audit: Path, store: ChangeStore) -> Iterator[ChangeAudit]:
    """The log, for as long as the block lasts. Raises ResourceUnusable."""
    with AuditLog(audit) as log:
        yield ChangeAudit(log, store)


def hold_recorded(audit: Path, store: ChangeStore, who: str) -> int:
    """Take the lock for a run. The log is opened only if there is something to record. Raises
    Refused, ResourceUnusable."""
    if not store.unrecorded:
        return store.hold(who)
    with auditing_changes(audit, store) as log:
        lock = store.hold(who)
        try:
            log.record_recovered()
        except BaseException:
            os.close(lock)
            raise
        return lock


def _fitting(changes: Sequence[FileChange]) -> list[str]:
    """Those of the first names that have room in an event, each as it is."""
    named: list[str] = []
    for change in changes[:MAX_NAMED]:
        name = os.fsencode(change.name).decode("utf-8", "backslashreplace")
        if len(json.dumps([*named, name])) <= MAX_NAMES:
            named.append(name)
    return named
