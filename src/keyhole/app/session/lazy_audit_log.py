"""A data plane's audit log, which is opened when there is something to write.

Most short commands connect to nothing, and leave no second file beside the run's own log.
`admitting` opens the log before anything is admitted; if that fails, nothing is admitted (I8).
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from keyhole.audit.log import LOST, AuditLog, LogBounds
from keyhole.audit.log_line import own_event
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.model.event import Event

MAX_WAITING = LogBounds().pending_of_session
"""Events that wait for a log that cannot be opened: refusals, since nothing is admitted."""


class LazyAuditLog:
    """The part of an `AuditLog` that a session uses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log: AuditLog | None = None
        self._begun: list[tuple[str, int]] = []
        self._waiting: deque[tuple[str, Event]] = deque(maxlen=MAX_WAITING)
        self._lost = 0
        """The number of events that were dropped because too many waited."""
        self._retry_at = 0.0

    @property
    def admitting(self) -> bool:
        """Whether events can be recorded. If not, nothing more may happen."""
        log = self._open()
        return log is not None and log.admitting

    def admits(self, session: str) -> bool:
        """The same for one session."""
        log = self._open()
        return log is not None and log.admits(session)

    def begin(self, session: str, per_second: int) -> None:
        """Set a session's rate."""
        if self._log is None:
            self._begun.append((session, per_second))
        else:
            self._log.begin(session, per_second)

    def record(self, session: str, event: Event) -> None:
        """Record an event."""
        log = self._open()
        if log is None:
            self._lost += len(self._waiting) == MAX_WAITING
            self._waiting.append((session, event))
        else:
            log.record(session, event)

    def finish(self, session: str) -> None:
        """No further events come from this session."""
        if self._log is not None:
            self._log.finish(session)

    def flush(self) -> None:
        """Wait until everything that was recorded is on disk."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """Write the events that wait, and the last line."""
        if self._waiting:
            self._retry_at = 0.0
            self._open()
        if self._log is not None:
            self._log.close()

    def head(self) -> str:
        """The digest of the last line; empty where there was nothing to write."""
        return "" if self._log is None else self._log.head()

    def _open(self) -> AuditLog | None:
        if self._log is None and time.monotonic() >= self._retry_at:
            try:
                self._log = AuditLog(self._path)
            except ResourceUnusable:
                self._retry_at = time.monotonic() + LogBounds().retry_every
                return None
            for session, per_second in self._begun:
                self._log.begin(session, per_second)
            if self._lost:
                count = [("count", self._lost)]
                self._log.record("", own_event(LOST, good=False, details=count))
            while self._waiting:
                self._log.record(*self._waiting.popleft())
        return self._log
