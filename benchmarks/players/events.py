"""The other sandboxes of a user, as a watcher meets them: events in the log, at a steady rate.

It writes by the gateway's own code into the directory that all gateways of a user share. A gateway
makes one event for a request, so so many events are more than one data plane ever serves.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

from benchmarks.players.peer import serve
from keyhole.audit.log import AuditLog, LogBounds
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind

SESSIONS = 50
TICK = 0.02
"""Seconds between two batches."""

_EVENT = Event(
    EventKind.REQUEST,
    Verdict.ALLOW,
    "rule",
    "services.api.allow[0]",
    "api.example",
    (("method", "GET"), ("path", "/v1/items"), ("service", "api"), ("status", 200)),
)
_WIDE = LogBounds(
    session=2**40, per_second=10**9, pending=10**9, pending_of_session=10**9, total=2**40
)


class EventWriter:
    """What the measurement asks for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._written = 0

    def begin(self, per_second: int) -> None:
        """Write so many events a second from now on."""
        self._stop.clear()
        self._written = 0
        self._thread = threading.Thread(target=self._write, args=(per_second,))
        self._thread.start()

    def end(self) -> int:
        """Stop; gives how many were written."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        return self._written

    def _write(self, per_second: int) -> None:
        names = [f"{number:012x}" for number in range(SESSIONS)]
        with AuditLog(self._path, bounds=_WIDE) as log:
            start = time.monotonic()
            while not self._stop.wait(TICK):
                due = int((time.monotonic() - start) * per_second)
                for number in range(self._written, due):
                    log.record(names[number % SESSIONS], _EVENT)
                self._written = due


def main() -> None:
    """Serve until the asker is gone."""
    writer = EventWriter(Path(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])), {"begin": writer.begin, "end": writer.end})


if __name__ == "__main__":
    main()
