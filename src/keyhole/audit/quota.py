"""Limits what each session may write: a rate and a total; beyond them events are counted (I9).

Called by the writer's thread, which hands it the time. A flood becomes one line a second for each
(kind, verdict, reason), so that it cannot rotate evidence away; nothing goes uncounted (I8).

Refs that a push changed are not subject to the rate; they have a total of bytes of their own.
Attack: after twenty pushes of 256 refused refs, the one that is allowed would be a count without a
name. A rate of its own would only move the attack: two pushes of allowed junk spend any burst, and
the third hides behind them. To spend the total, an attacker must change about a hundred thousand
refs, each of which is written by name before the first is only counted; and it adds no more to the
log than a session's other lines may. Names of counted refs are not kept, since the last push would
choose them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.audit.log_line import FoldedEvents, LineDraft, draft_line
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.policy.limit import TokenBucket
from keyhole.policy.shared_limit import SharedBucket

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEVER_FOLDED = frozenset({EventKind.SESSION, EventKind.CHANGES})
"""The gateway and a person's own verbs alone make these, a few for each session."""

MAX_FOLDS = 64
"""Keys under which a session's events are counted at the same time; others share one key."""
FOLD_SECONDS = 1.0
SPENT_FOLD_SECONDS = 60.0
"""Seconds between counts of a session that spent its bytes: a day of them stays in megabytes."""

OTHER_REASONS = "other-reasons"
RATE, TOTAL = "limits.audit_per_second", "limits.audit_bytes"
COMMON = "gateway.audit_per_second"
SHARE = "shares.audit"
"""The session's share of a full disk's reserve is used up."""

_ALLOW = Verdict.ALLOW
_REF = EventKind.REF

Key = tuple[EventKind, Verdict, str]


class _Count(Struct):
    count: int
    first: float
    last: float


class EventCounts:
    """Counts of events by common members. In a flood, `add` is on the gateway's hot path."""

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

    def merge(self, other: EventCounts) -> None:
        """Add the counts of another."""
        for key, counted in other._counts.items():
            found = self._counts.get(key) or self._begin(key, counted.first)
            found.count += counted.count
            found.last = counted.last

    def drafts(self, session: str, rule: str) -> list[LineDraft]:
        """One line for each key."""
        return [
            draft_line(
                counted.last,
                session,
                Event(kind, verdict, reason, rule=rule),
                FoldedEvents(counted.count, counted.first, counted.last),
            )
            for (kind, verdict, reason), counted in self._counts.items()
        ]

    def _begin(self, key: Key, at: float) -> _Count:
        if len(self._counts) >= MAX_FOLDS:
            key = (key[0], key[1], OTHER_REASONS)
        return self._counts.setdefault(key, _Count(0, at, at))


class _Session(Struct):
    bucket: TokenBucket | None = None
    """None: there is no rate."""
    used: int = 0
    spent: bool = False
    common: bool = False
    """Whether it kept its own rate, but all sessions together exceeded theirs."""
    halted: bool = False
    """Whether events of it were counted because the disk was full."""
    folds: EventCounts = field(default_factory=EventCounts)
    due: float = 0.0


def is_change(event: Event) -> bool:
    """Whether it names a ref that a push changed, or that the origin then refused."""
    return event.kind is _REF and event.verdict is _ALLOW


class SessionQuota:
    """The shares of every session: one for its pushes' changes, one for all other events."""

    def __init__(self, per_second: int, max_bytes: int, all_per_second: int | None = None) -> None:
        """`all_per_second` bounds all sessions together; None: unbounded."""
        self.common: SharedBucket | None = None
        if all_per_second is not None:
            self.common = SharedBucket.full(
                "audit_per_second", all_per_second, 0.0, table="gateway"
            )
        self._per_second = per_second
        self._max_bytes = max_bytes
        self._sessions: dict[str, _Session] = {}
        self._changes: dict[str, _Session] = {}
        self.halted: frozenset[str] = frozenset()
        """Sessions of which only counts are written while the disk is full."""

    def begin(self, session: str, per_second: int, now: float) -> None:
        """Give a session its own rate."""
        self._sessions[session] = _Session(TokenBucket.full(RATE, per_second, now))

    def sift(self, session: str, at: float, event: Event, now: float) -> LineDraft | None:
        """The event as a line, or None when it was counted instead."""
        if event.kind in NEVER_FOLDED:
            return draft_line(at, session, event)
        state = self._state_for(session, event, now)
        bucket = state.bucket
        halted = session in self.halted
        if (
            not halted
            and (bucket is None or self._may_write(state, bucket, now))
            and not state.spent
        ):
            line = draft_line(at, session, event)
            used = state.used + len(line.body)
            if used <= self._max_bytes:
                state.used = used
                return line
            state.spent = True
        self._open_window(state, now, seldom=halted)
        state.halted = state.halted or halted
        state.folds.add(at, event)
        return None

    def _may_write(self, state: _Session, bucket: TokenBucket, now: float) -> bool:
        if bucket.take(now).verdict is not _ALLOW:
            return False
        if self.common is None or self.common.take(now).verdict is _ALLOW:
            return True
        state.common = True
        return False

    def add_counted(self, session: str, folds: EventCounts, now: float) -> None:
        """Take over counts that were made elsewhere."""
        state = self._state(session, now)
        self._open_window(state, now)
        state.folds.merge(folds)

    def due(self) -> float | None:
        """When the next counts must be written."""
        return min((state.due for _, state in self._shares() if state.folds), default=None)

    def collect(self, now: float, *, everything: bool = False) -> list[LineDraft]:
        """The counts that are due."""
        return [
            line
            for session, state in self._shares()
            if state.folds and (everything or state.due <= now)
            for line in self._take(session, state)
        ]

    def finish(self, sessions: Iterable[str]) -> list[LineDraft]:
        """Forget sessions, and return their remaining counts."""
        found = []
        for session in sessions:
            for shares in (self._sessions, self._changes):
                state = shares.pop(session, None)
                if state is not None:
                    found += self._take(session, state)
        return found

    def _shares(self) -> Iterator[tuple[str, _Session]]:
        yield from self._sessions.items()
        yield from self._changes.items()

    def _state_for(self, session: str, event: Event, now: float) -> _Session:
        if not is_change(event):
            return self._state(session, now)
        state = self._changes.get(session)
        if state is None:
            state = self._changes[session] = _Session()
        return state

    def _state(self, session: str, now: float) -> _Session:
        state = self._sessions.get(session)
        if state is None:
            self.begin(session, self._per_second, now)
            state = self._sessions[session]
        return state

    @staticmethod
    def _open_window(state: _Session, now: float, *, seldom: bool = False) -> None:
        if not state.folds:
            state.due = now + (SPENT_FOLD_SECONDS if state.spent or seldom else FOLD_SECONDS)

    @staticmethod
    def _take(session: str, state: _Session) -> list[LineDraft]:
        rule = COMMON if state.common else RATE
        if state.halted:
            rule = SHARE
        lines = state.folds.drafts(session, TOTAL if state.spent else rule)
        state.folds, state.common, state.halted = EventCounts(), False, False
        state.used += sum(len(line.body) for line in lines)
        return lines
