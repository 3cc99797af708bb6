"""Writes down what a person did with changes that were held for review (I8).

Used by `keyhole apply`, `discard` and `undo`, and by a run that finishes what a killed one of them
began. The log is opened before anything is done: without a log nothing is applied.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from keyhole.app.session.session_events import new_session
from keyhole.audit.log import AuditLog
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from keyhole.changes.change_store import ChangeStore
    from keyhole.changes.entry import FileChange

MAX_NAMED = 16
"""Paths that one event names; the others are counted. An event is small."""
MAX_NAME = 200
"""Characters of a path in an event."""


class ChangeAudit:
    """The log, open, for one act on one project's changes."""

    def __init__(self, log: AuditLog, store: ChangeStore) -> None:
        self._log = log
        self._store = store
        self._session = store.session or new_session()
        """The session that last worked on the view."""

    def record(self, act: str, changes: Sequence[FileChange] = (), **details: str | int) -> None:
        """Record that these changes were applied, discarded or restored. Files that the host may
        execute are named first."""
        ordered = sorted(changes, key=lambda change: change.executed is None)
        executed = sum(change.executed is not None for change in changes)
        table: dict[str, str | int] = {"project": self._store.project, **details}
        if changes:
            table |= {"changes": len(changes), "host-may-execute": executed}
            table["paths"] = _names(ordered)
        self._write(Verdict.ALLOW, act, table)

    def record_failure(self, act: str, error: Exception) -> None:
        """Record that an act failed; an apply that fails has changed nothing."""
        table = {"project": self._store.project, "error": str(error)[:MAX_NAME]}
        self._write(Verdict.DENY, f"{act}-failed", table)

    def record_recovered(self) -> None:
        """Record an act of a killed process that was finished or undone just now, if any."""
        for act, count in self._store.recovered:
            self._write(
                Verdict.ALLOW, f"{act}-recovered", {"project": self._store.project, "steps": count}
            )

    def _write(self, verdict: Verdict, reason: str, details: Mapping[str, str | int]) -> None:
        event = Event(EventKind.CHANGES, verdict, reason, details=tuple(details.items()))
        self._log.record(self._session, event)
        self._log.flush()


@contextlib.contextmanager
def auditing_changes(audit: Path, store: ChangeStore) -> Iterator[ChangeAudit]:
    """The log, for as long as the block lasts. Raises ResourceUnusable."""
    with AuditLog(audit) as log:
        yield ChangeAudit(log, store)


def _names(changes: Sequence[FileChange]) -> str:
    named = [os.fsencode(c.name).decode("utf-8", "replace")[:MAX_NAME] for c in changes[:MAX_NAMED]]
    more = len(changes) - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])
