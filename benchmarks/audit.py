"""What the audit log costs: the gateway's call, and the writer's work for a line."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rounds import Row, interleave
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = 20_000
RECORD_BOUND = 5e-6
"""Seconds that the gateway may spend on recording one event."""
EVENT = Event(
    EventKind.CONNECT, Verdict.ALLOW, "rule", "egress.allow[0]", "api.example", (("port", 443),)
)
WIDE = LogBounds(
    session=2**40, per_second=10**9, pending=10**9, pending_of_session=10**9, flush_every=60.0
)
FLOODED = LogBounds(per_second=200, flush_every=60.0)


def measure() -> list[Row]:
    """Recording against its bound, and writing to the end."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "audit"
        found = interleave(
            {
                "record": _timer(path, WIDE, to_the_end=False),
                "flood": _timer(path, FLOODED, to_the_end=False),
                "written": _timer(path, WIDE, to_the_end=True),
            }
        )
    record, flood, written = found["record"], found["flood"], found["written"]
    unit = "µs"
    return [
        Row("record, of 5 µs", record.shown(unit, 1e6), record.median / RECORD_BOUND, 1.0),
        Row("record in a flood, of 5 µs", flood.shown(unit, 1e6), flood.median / RECORD_BOUND, 1.0),
        Row("an event from record to disk, both threads", written.shown(unit, 1e6)),
    ]


def _timer(path: Path, bounds: LogBounds, *, to_the_end: bool) -> Callable[[], float]:
    def run() -> float:
        with AuditLog(path, bounds=bounds) as log:
            start = time.perf_counter()
            for _ in range(EVENTS):
                log.record("session", EVENT)
            if to_the_end:
                log.flush()
            return (time.perf_counter() - start) / EVENTS

    return run
