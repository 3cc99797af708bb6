"""The log that the gateway writes to: `record` on the hot path, all else in a thread of its own.

`record` puts an event into memory and returns. The writer's thread writes the gathered events to
disk, at least ten times a second. The log must not block the gateway, grow without bound (I9), or
lose an event without counting it (I8).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field

from keyhole.audit.chain import JOINED, Chain
from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_line import FoldedEvents, LineDraft, draft_line, own_event
from keyhole.audit.quota import NEVER_FOLDED, EventCounts, SessionQuota, is_change
from keyhole.audit.retention import RetentionLimit, prune
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyhole.model.event import Event

LOST = "lost"
SCARCE, ROOM_AGAIN = "disk-full", "room-again"

_MIB = 1024 * 1024


class Clock(Struct, frozen=True):
    """The time of day, for lines; and a clock that never steps, for rates."""

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic


class LogBounds(Struct, frozen=True):
    """The bounds of the log: sizes in bytes, durations in seconds (I9)."""

    file: int = 64 * _MIB
    total: int = 1024 * _MIB
    files: int = 16_384
    """Short runs leave small files; this many are still listed without a delay."""
    session: int = 64 * _MIB
    per_second: int = 200
    """Lines a second of a session that was not begun with a rate of its own."""
    all_per_second: int | None = None
    """Lines a second of all sessions, by the user's `gateway.audit_per_second`; None: unbounded."""
    pending: int = 65_536
    """Events in memory, some 30 MiB."""
    pending_of_session: int = 4096
    """One session's share of them: a flood is counted before it takes the place of others."""
    pending_changes: int = 16_384
    """Beyond that share, events of refs that one session's pushes changed."""
    flush_every: float = 0.1
    room: int = 64 * 1024
    """Free bytes that a full disk must have before it is written to again: a busy second."""
    reserve: int = _MIB
    """Allocated ahead, so that a full disk does not stop the log; at most a quarter of the free
    space. A log of many sessions has more."""
    reserve_of_session: int = 512 * 1024
    """One session's share of that reserve, about a thousand lines and at most an eighth. A session
    that has used it up is not admitted any more; others are."""
    retry_every: float = 1.0
    """How long after a failure the log is tried again; if it works, the gateway admits again."""


class _Intake(Struct):
    """Events that came since the writer last looked."""

    events: list[tuple[float, str, Event]] = field(default_factory=list)
    shares: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    folds: dict[str, EventCounts] = field(default_factory=dict)
    begun: list[tuple[str, int]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    share: float | None = None
    """Another share of `all_per_second`."""

    def __bool__(self) -> bool:
        return bool(
            self.events or self.folds or self.begun or self.finished or self.share is not None
        )


class AuditLog:
    """One process's log in a directory that it may share with other processes."""

    def __init__(
        self,
        path: Path,
        clock: Clock | None = None,
        bounds: LogBounds | None = None,
        lack: Callable[[], None] | None = None,
    ) -> None:
        """`lack` is called in the writer's thread when `all_per_second` refuses a line."""
        self._clock, self._bounds = clock or Clock(), bounds or LogBounds()
        self._directory = LogDirectory.make(path)
        # Reentrant: a signal handler may record while its own thread is in `record`.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._intake = _Intake()
        self._asked = self._answered = 0
        self._closing = self._ended = False
        given = self._bounds
        self._quota = SessionQuota(given.per_second, given.session, given.all_per_second)
        if self._quota.common is not None:
            self._quota.common.lack = lack
        self._lost: FoldedEvents | None = None
        self._admitting = True
        ahead = min(given.reserve, self._directory.free() // 4)
        self._reserve_of_session = min(given.reserve_of_session, ahead // 8)
        self._used_of_reserve: dict[str, int] = {}
        self._stopped: frozenset[str] = frozenset()
        try:
            self._chain = Chain(self._directory, self._clock.wall, self._bounds.file, ahead)
            self._chain.append(deque())
            self._chain.allocate()
            self._prune()
        except OSError as error:
            self._directory.close()
            raise ResourceUnusable(f"{path}: cannot be written: {error.strerror}") from None
        self._writer = threading.Thread(target=self._run, name="audit", daemon=True)
        try:
            self._writer.start()
        except RuntimeError:
            # Attack: a sandbox that uses up all processes. The file is removed again, because the
            # files of many attempts would push older ones out.
            self._chain.discard()
            self._directory.close()
            raise ResourceUnusable(f"{path}: this host has no thread left to write it") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def admitting(self) -> bool:
        """Whether events can be written. If not, the gateway must admit nothing (I8)."""
        return self._admitting

    def admits(self, session: str) -> bool:
        """The same for one session: on a full disk, each has a share of the reserve."""
        return self._admitting and session not in self._stopped

    @property
    def pending(self) -> int:
        """Events in memory."""
        with self._lock:
            return len(self._intake.events)

    @property
    def lag(self) -> float:
        """Seconds for which the oldest event has waited."""
        with self._lock:
            events = self._intake.events
            return max(0.0, self._clock.wall() - events[0][0]) if events else 0.0

    def record(self, session: str, event: Event) -> None:
        """Queue an event for writing, and return at once. Beyond the bounds it is only counted."""
        at = self._clock.wall()
        with self._lock:
            if self._closing:
                raise RuntimeError("the audit log is closed")
            intake = self._intake
            events = intake.events
            share = intake.shares.get(session, 0)
            if not events:
                self._changed.notify_all()
            elif (
                share >= self._bounds.pending_of_session or len(events) >= self._bounds.pending
            ) and not self._must_stay(session, event):
                folds = intake.folds.get(session)
                if folds is None:
                    folds = intake.folds[session] = EventCounts()
                folds.add(at, event)
                return
            intake.shares[session] = share + 1
            events.append((at, session, event))

    def _must_stay(self, session: str, event: Event) -> bool:
        """Whether there is room for an event, although its session's share is full."""
        if event.kind in NEVER_FOLDED:
            return True
        intake, bounds = self._intake, self._bounds
        changes = intake.changes.get(session, 0)
        # Other events stop at `pending`; as much room again is for changed refs alone.
        if (
            not is_change(event)
            or changes >= bounds.pending_changes
            or len(intake.events) >= 2 * bounds.pending
        ):
            return False
        intake.changes[session] = changes + 1
        return True

    def begin(self, session: str, per_second: int) -> None:
        """Give a session the rate of its policy's `limits.audit_per_second`."""
        with self._lock:
            self._intake.begun.append((session, per_second))

    def look_at_rate(self) -> tuple[int, bool] | None:
        """Lines that were written since the last look, and whether `all_per_second` refused; None
        without that bound."""
        return None if self._quota.common is None else self._quota.common.look()

    def share_rate(self, per_second: float) -> None:
        """Continue with another share of `all_per_second`, which other processes have too."""
        with self._lock:
            self._intake.share = per_second
            self._changed.notify_all()

    def join(self, head: str) -> None:
        """Record the last digest of another process's log, which has ended.

        A person who knows the head of this log can then detect that the other one was cut.
        """
        self.record("", own_event(JOINED, good=True, details=[("head", head)]))

    def finish(self, session: str) -> None:
        """End a session: write its counts and forget it."""
        with self._lock:
            self._intake.finished.append(session)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until every recorded event, counts included, was written to disk."""
        with self._lock:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= ticket or self._ended)

    def head(self) -> str:
        """The digest of the last line that was written."""
        with self._lock:
            return self._chain.head

    def close(self) -> None:
        """Write the remaining events and the last line; a second call does nothing."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._writer.join()

    # ── the writer's thread ──

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._finish()
        finally:
            # However the thread ended, the gateway must not go on as if events were written.
            with self._lock:
                self._admitting, self._closing, self._ended = False, True, True
                self._changed.notify_all()
            self._directory.close()

    def _turn(self) -> bool:
        """Wait for work and do it; False when the log is closed."""
        with self._lock:
            self._changed.wait_for(lambda: self._intake or self._is_urgent(), self._patience())
            self._changed.wait_for(self._is_urgent, self._bounds.flush_every)
            intake, self._intake = self._intake, _Intake()
            asked, closing = self._asked, self._closing
        urgent = asked > self._answered or closing
        now = self._clock.steady()
        self._store(self._sift(intake, now, everything=urgent), sync=urgent)
        with self._lock:
            self._answered = asked
            self._changed.notify_all()
        return not closing

    def _is_urgent(self) -> bool:
        return self._closing or self._asked > self._answered

    def _patience(self) -> float | None:
        """How long the thread may sleep: until counts are due, or a failure is tried again."""
        due = self._quota.due()
        waits = [] if due is None else [max(0.0, due - self._clock.steady())]
        if self._lost or not self._admitting or self._chain.scarce:
            waits.append(self._bounds.retry_every)
        return min(waits, default=None)

    def _sift(self, intake: _Intake, now: float, *, everything: bool) -> deque[LineDraft]:
        if intake.share is not None and self._quota.common is not None:
            self._quota.common.resize(intake.share, now)
        for session, per_second in intake.begun:
            self._quota.begin(session, per_second, now)
        found = (self._quota.sift(session, at, event, now) for at, session, event in intake.events)
        queue = deque(line for line in found if line is not None)
        for session, folds in intake.folds.items():
            self._quota.add_counted(session, folds, now)
        queue += self._quota.collect(now, everything=everything)
        queue += self._quota.finish(intake.finished)
        return queue

    def _store(self, queue: deque[LineDraft], *, sync: bool = False) -> None:
        """Write the lines, preceded by the number of lines that could not be written."""
        tale = self._tell_lost(queue[0].at if queue else self._clock.wall())
        if tale is not None:
            queue.appendleft(tale)
        elif not queue and not sync and not self._chain.scarce:
            self._admit_again()
            return
        try:
            self._ration(queue)
            begun = self._chain.append(queue)
            if sync:
                self._chain.sync()
            self._lost = None
            self._admit_again()
            if begun:
                self._prune()
        except OSError:
            self._admitting = False
            self._count_lost(queue, tale)

    def _ration(self, queue: deque[LineDraft]) -> None:
        """While the disk is full, count what each session writes; stop those beyond their share.

        Events of a stopped session are refused and counted, not written line by line: its refusals
        must not use up the shares of others (I8, I12).
        """
        was_scarce = self._chain.scarce
        self._chain.allocate()
        if not self._chain.scarce:
            if was_scarce:
                self._used_of_reserve.clear()
                self._stopped = self._quota.halted = frozenset()
                queue.appendleft(self._own(ROOM_AGAIN, good=True))
            return
        if not was_scarce:
            queue.appendleft(self._own(SCARCE, good=False))
        used = self._used_of_reserve
        for line in queue:
            used[line.session] = used.get(line.session, 0) + len(line.body)
        over = {each for each, size in used.items() if size > self._reserve_of_session}
        over.discard("")  # events of the log itself and of the gateway
        self._stopped = self._quota.halted = frozenset(over)

    def _own(self, reason: str, *, good: bool) -> LineDraft:
        return draft_line(self._clock.wall(), "", own_event(reason, good=good, details=()))

    def _admit_again(self) -> None:
        """Whether the disk has room again; one short line that still fitted does not count."""
        self._admitting = self._admitting or self._directory.has_room(self._bounds.room)

    def _tell_lost(self, at: float) -> LineDraft | None:
        if self._lost is None:
            return None
        event = own_event(LOST, good=False, details=[("count", self._lost.count)])
        return draft_line(at, "", event, self._lost)

    def _count_lost(self, queue: deque[LineDraft], tale: LineDraft | None) -> None:
        if tale is not None and not (queue and queue[0] is tale):
            self._lost = None  # written before the disk refused the rest
        now = self._clock.wall()
        before = self._lost or FoldedEvents(0, now, now)
        count = sum(line.weight for line in queue if line is not tale)
        self._lost = FoldedEvents(before.count + count, before.first, now)

    def _prune(self) -> None:
        keep = RetentionLimit(self._bounds.total, self._bounds.files)
        prune(self._directory, keep, self._chain.name, self._write_own)

    def _write_own(self, events: list[Event]) -> None:
        self._chain.append(deque(draft_line(self._clock.wall(), "", event) for event in events))

    def _finish(self) -> None:
        """Write the last line, if the disk still takes it."""
        try:
            self._chain.close()
        except OSError:
            self._admitting = False
