"""What each session may write: a rate, a total, and beyond them a count (I9).

Called by the writer's thread, which hands it the time. A flood becomes one line a second for each
(kind, verdict, reason), so that it cannot rotate evidence away; nothing goes uncounted (I8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.audit.line import Draft, Fold, draft
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass, field
from keyhole.policy.limit import Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable

NEVER_FOLDED = frozenset({EventKind.SESSION})
"""The gateway alone makes these, a few for each session."""

MAX_FOLDS = 64
"""Keys that a session's events are counted under at once; others share one key."""
FOLD_SECONDS = 1.0
SPENT_FOLD_SECONDS = 60.0
"""For a session that spent its bytes: its counts go on, but a day of them stays in megabytes."""

OTHER_REASONS = "other-reasons"
RATE, TOTAL = "audit_per_second", "audit_bytes"

_ALLOW = Verdict.ALLOW

Key = tuple[EventKind, Verdict, str]


@dataclass(slots=True)
class _Count:
    count: int
    first: float
    last: float


class Folds:
    """Counts of events by what they have in common. `add` is on the gateway's path in a flood."""

    def __init__(self) -> None:
        self._counts: dict[Key, _Count] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, at: float, event: Event) -> None:
        """Count one event."""
        key = (event.kind, event.verdict, event.reason)
        found = self._counts.get(key)
        if found is None:
            found = self._begin(key, at)
        found.count += 1
        found.last = at

    def merge(self, other: Folds) -> None:
        """Count what another counted."""
        for key, counted in other._counts.items():
            found = self._counts.get(key) or self._begin(key, counted.first)
            found.count += counted.count
            found.last = counted.last

    def drafts(self, session: str, rule: str) -> list[Draft]:
        """One line for each key."""
        return [
            draft(
                counted.last,
                session,
                Event(kind, verdict, reason, rule=f"limits.{rule}"),
                Fold(counted.count, counted.first, counted.last),
            )
            for (kind, verdict, reason), counted in self._counts.items()
        ]

    def _begin(self, key: Key, at: float) -> _Count:
        if len(self._counts) >= MAX_FOLDS:
            key = (key[0], key[1], OTHER_REASONS)
        return self._counts.setdefault(key, _Count(0, at, at))


@dataclass(slots=True)
class _Session:
    bucket: Bucket
    used: int = 0
    spent: bool = False
    folds: Folds = field(default_factory=Folds)
    due: float = 0.0


class Quota:
    """Every session's share."""

    def __init__(self, per_second: int, max_bytes: int) -> None:
        self._per_second = per_second
        self._max_bytes = max_bytes
        self._sessions: dict[str, _Session] = {}

    def begin(self, session: str, per_second: int, now: float) -> None:
        """Give a session its own rate."""
        self._sessions[session] = _Session(Bucket.full(RATE, per_second, now))

    def sift(self, session: str, at: float, event: Event, now: float) -> Draft | None:
        """The event as a line, or None when it was counted instead."""
        state = self._state(session, now)
        if event.kind in NEVER_FOLDED:
            return draft(at, session, event)
        rate = state.bucket.take(now)
        if rate.verdict is _ALLOW and not state.spent:
            line = draft(at, session, event)
            used = state.used + len(line.body)
            if used <= self._max_bytes:
                state.used = used
                return line
            state.spent = True
        self._open_window(state, now)
        state.folds.add(at, event)
        return None

    def add_counted(self, session: str, folds: Folds, now: float) -> None:
        """Take over what was counted before it came here."""
        state = self._state(session, now)
        self._open_window(state, now)
        state.folds.merge(folds)

    def due(self) -> float | None:
        """When the next counts are to be written."""
        return min((s.due for s in self._sessions.values() if s.folds), default=None)

    def collect(self, now: float, *, everything: bool = False) -> list[Draft]:
        """The counts whose time has come."""
        return [
            line
            for session, state in self._sessions.items()
            if state.folds and (everything or state.due <= now)
            for line in self._take(session, state)
        ]

    def finish(self, sessions: Iterable[str]) -> list[Draft]:
        """Forget sessions, and give what was still counted."""
        found = []
        for session in sessions:
            state = self._sessions.pop(session, None)
            if state is not None:
                found += self._take(session, state)
        return found

    def _state(self, session: str, now: float) -> _Session:
        state = self._sessions.get(session)
        if state is None:
            self.begin(session, self._per_second, now)
            state = self._sessions[session]
        return state

    @staticmethod
    def _open_window(state: _Session, now: float) -> None:
        if not state.folds:
            state.due = now + (SPENT_FOLD_SECONDS if state.spent else FOLD_SECONDS)

    @staticmethod
    def _take(session: str, state: _Session) -> list[Draft]:
        lines = state.folds.drafts(session, TOTAL if state.spent else RATE)
        state.folds = Folds()
        state.used += sum(len(line.body) for line in lines)
        return lines
