"""Releases the helper before the event loop is imported, to start the command sooner.

Called by `cli` when the helper has its launch. Everything that must hold before a command
may start is done here, in the same order as in `run.py`; the loop and the gateway are imported
while bubblewrap makes its mounts. Where a set-up was not tested yet, or secrets are still to be
written, nothing is done early.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from keyhole.app.selftest.selftest_cache import SelftestCache, bubblewrap_key
from keyhole.app.session.session_events import session_event
from keyhole.audit.log import AuditLog
from keyhole.confine.seccomp import build_filter

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.bwrap.helper import Helper
    from keyhole.sandbox.launch import Launch


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
"""Signals that are sent to Keyhole and forwarded to the command."""


def block_signals() -> None:
    """Block these signals. The helper was started before and does not inherit this."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)


def unblock_signals() -> None:
    """Deliver the signals that waited, and all later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def begin_session(session: str, audit_directory: Path, launch: Launch, per_second: int) -> AuditLog:
    """Open the log and record that a session begins, before anything of it can happen (I8)."""
    log = AuditLog(audit_directory)
    log.begin(session, per_second)
    log.record(session, session_event("started", command=launch.command[0]))
    return log


def release_helper(
    session: str, launch: Launch, helper: Helper, tried: SelftestCache, directory: Path, rate: int
) -> AuditLog | None:
    """Let the helper go on to bubblewrap. Returns the audit log, which is open from then on; None
    if these walls were never tried.

    `directory` and `rate` are the log's.
    """
    # 1. The walls of this set-up have held (I2).
    program = build_filter()
    if not tried.holds(bubblewrap_key(launch, program, borrows=bool(helper.refusal()))):
        return None
    # From here on signals are for the command, and wait until a loop can forward them. They are
    # blocked before the log starts its thread, which would take them.
    block_signals()
    # 2. The audit log can be written (I8).
    try:
        log = begin_session(session, directory, launch, rate)
    except BaseException:
        unblock_signals()
        raise
    try:
        # 3. We hold the door; only then the helper may go on.
        helper.take_door()
        helper.let_go_on(program)
    except BaseException:
        unblock_signals()
        log.record(session, session_event("ended", code=125))
        log.close()
        raise
    return log
