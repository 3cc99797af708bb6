"""Reads from the audit log what sessions did and tried, each thing once with its number.

A log may be large and its texts are hostile: memory is bounded by MAX_USES, and what is over it is
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.audit.log_reader import LogReader
from keyhole.model.event import EventKind
from keyhole.model.host import DEFAULT_PORT
from keyhole.policy.recorded_use import RecordedUse, is_decision, read_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyhole.audit.log_directory import LogDirectory
    from keyhole.audit.log_line import LogRecord

MAX_USES = 200_000
"""Different things that are kept, some 100 MiB; a session's log has a few hundred."""

_LEARNING = "learning"
_USES = frozenset({EventKind.DNS, EventKind.CONNECT, EventKind.REQUEST, EventKind.REF})


class UseCount(Struct):
    """How often something was allowed and denied, and where it was seen first."""

    session: str
    ts: str
    allowed: int = 0
    denied: int = 0

    @property
    def total(self) -> int:
        """How often it was seen."""
        return self.allowed + self.denied


class RecordedUses(Struct):
    """Everything of some sessions."""

    uses: dict[RecordedUse, UseCount] = field(default_factory=dict)
    sessions: dict[str, bool] = field(default_factory=dict)
    """The sessions, and whether each was a learning run; the newest last."""
    events: int = 0
    """Decisions that were read."""
    beyond: int = 0
    """Decisions that were not kept because there were too many different ones."""


def read_uses(
    directory: LogDirectory, since: float | None, wanted: Callable[[str], bool]
) -> RecordedUses:
    """The uses of the sessions that `wanted` takes."""
    found = RecordedUses()
    ports: dict[tuple[str, str], int] = {}
    for entry in LogReader(directory, since or 0.0).read():
        record = entry.record
        if record is None or (since is not None and record.at < since):
            continue
        if not record.session or not wanted(record.session):
            continue
        learns = record.kind == EventKind.SESSION and record.reason == _LEARNING
        found.sessions[record.session] = found.sessions.get(record.session, False) or learns
        decided = record.kind, record.verdict, record.reason, record.rule
        if record.kind in _USES and is_decision(*decided):
            _count(found, record, ports)
    return found


def last_session(directory: LogDirectory, since: float | None) -> str | None:
    """The newest session of a learning run; if there is none, the newest of all."""
    sessions = read_uses(directory, since, lambda _: True).sessions
    learning = [session for session, learns in sessions.items() if learns]
    newest = learning or [*sessions]
    return newest[-1] if newest else None


def _count(found: RecordedUses, record: LogRecord, ports: dict[tuple[str, str], int]) -> None:
    weight = max(1, record.folded)
    found.events += weight
    known = ports.get((record.session, record.host), DEFAULT_PORT)
    use = read_use(record.kind, record.host, record.details, known)
    if use is None:
        return
    if record.kind == EventKind.CONNECT and len(ports) < MAX_USES:
        ports[record.session, record.host] = use.port
    count = found.uses.get(use)
    if count is None:
        if len(found.uses) >= MAX_USES:
            found.beyond += weight
            return
        count = found.uses[use] = UseCount(record.session, record.ts)
    if record.denied:
        count.denied += weight
    else:
        count.allowed += weight
