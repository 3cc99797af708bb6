"""What a run does before its event loop is even imported: the helper is let go on, in order.

Called by `cli` when the helper was told of its launch. Everything that must hold before a command
may start is done here, in the same order as in `run.py`; the loop and the gateway are imported
while bubblewrap makes its mounts. Where a set-up was not tried yet, or
secrets are still to be written, nothing is done ahead.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from keyhole.app.session import session_event
from keyhole.app.tried import Remembered, key_of
from keyhole.audit.log import AuditLog
from keyhole.sandbox.seccomp import build_filter

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.helper import Helper
    from keyhole.sandbox.launch import Launch


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""What is sent to Keyhole and meant for the command."""


def hold_signals() -> None:
    """Let them wait: the helper, which does not inherit this, was started before."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)


def let_signals_come() -> None:
    """Take those that waited, and all that come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def begin_session(session: str, audit_directory: Path, launch: Launch, per_second: int) -> AuditLog:
    """Open the log, and write that a session begins: before anything of it can happen (I8)."""
    log = AuditLog(audit_directory)
    log.begin(session, per_second)
    log.record(session, session_event("started", command=launch.command[0]))
    return log


def release(
    session: str, launch: Launch, helper: Helper, tried: Remembered, directory: Path, rate: int
) -> AuditLog | None:
    """Let the helper go on to bubblewrap; None when its walls were never tried.

    `directory` and `rate` are the log's, which is open from then on.
    """
    # 1. The walls of this set-up have held (I2).
    program = build_filter()
    if not tried.holds(key_of(launch, program, borrows=bool(helper.refusal()))):
        return None
    # From here on signals are meant for a command, and wait until there is a loop to hand them on.
    # Before the log has its thread: that would take them.
    hold_signals()
    # 2. What happens can be written down (I8).
    try:
        log = begin_session(session, directory, launch, rate)
    except BaseException:
        let_signals_come()
        raise
    try:
        # 3. The door is in our hands, and only then the helper has our word.
        helper.take_door()
        helper.let_go_on(program)
    except BaseException:
        let_signals_come()
        log.record(session, session_event("ended", code=125))
        log.close()
        raise
    return log
