"""What a run does before its event loop is even imported: the helper is let go on, in order.

Called by `cli` when the helper was told of its launch. Everything that must hold before a command
may start is done here, in the same order as in `run.py`; the loop and the gateway are imported
while bubblewrap makes its mounts. Where a set-up was not tried yet, nothing is done ahead.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from keyhole.app.tried import Remembered, key_of
from keyhole.audit.log import AuditLog
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from keyhole.model.value import dataclass
from keyhole.sandbox.seccomp import build_filter

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.helper import Helper
    from keyhole.sandbox.launch import Launch


@dataclass(frozen=True, slots=True)
class Begun:
    """A session that has begun, and the log that is open for it."""

    session: str
    log: AuditLog


def begin_session(audit_directory: Path, launch: Launch, per_second: int) -> Begun:
    """Open the log, and write that a session begins: before anything of it can happen (I8)."""
    log, session = AuditLog(audit_directory), secrets.token_hex(6)
    log.begin(session, per_second)
    log.record(session, session_event("started", command=launch.command[0]))
    return Begun(session, log)


def session_event(what: str, **details: str | int) -> Event:
    """An event of the session itself."""
    return Event(EventKind.SESSION, Verdict.ALLOW, what, details=tuple(details.items()))


def release(
    launch: Launch, helper: Helper, tried: Remembered, audit_directory: Path, per_second: int
) -> Begun | None:
    """Let the helper go on to bubblewrap; None when its walls were never tried."""
    # 1. The walls of this set-up have held (I2).
    program = build_filter()
    if not tried.holds(key_of(launch, program)):
        return None
    # 2. What happens can be written down (I8).
    begun = begin_session(audit_directory, launch, per_second)
    try:
        # 3. The door is in our hands, and only then the helper has our word.
        helper.take_door()
        helper.let_go_on(program)
    except BaseException:
        begun.log.record(begun.session, session_event("ended", code=125))
        begun.log.close()
        raise
    return begun
