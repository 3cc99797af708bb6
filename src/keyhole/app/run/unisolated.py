"""Runs a command on the host itself, without any wall: `--unsafe-no-isolation`.

Called only for that flag, never for a policy. No policy and no secret is read and no gateway runs,
so nothing can leak (I1). The audit log records that it ran and how it ended (I8).
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.run.early_start import FORWARDED
from keyhole.app.session.session_events import new_session, session_event
from keyhole.audit.log import AuditLog

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REASON = "unsafe-no-isolation"
"""The reason of the session's first event, in place of `started`."""

_EVENTS_PER_SECOND = 2
"""Two events are written: the start and the end."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127


class UnisolatedResult(Struct, frozen=True):
    """How it ended, and the audit log's last digest; `error` is why it could not be started."""

    code: int
    session: str
    head: str
    error: str = ""


def run_unisolated(
    command: tuple[str, ...], env: Mapping[str, str], audit: Path
) -> UnisolatedResult:
    """Run it to its end. Raises ResourceUnusable if it cannot be started."""
    session, error = new_session(), ""
    # Before the log has its thread, which would take them.
    waited = {*FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        with AuditLog(audit) as log:
            log.begin(session, _EVENTS_PER_SECOND)
            log.record(session, session_event(REASON, command=command[0]))
            log.flush()  # a signal from here on could end us
            try:
                child = os.posix_spawnp(
                    command[0],
                    command,
                    env,
                    setsigmask=before,
                    setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them
                )
            except FileNotFoundError:
                code, error = NOT_FOUND, "not found"
            except OSError as failed:
                code, error = NOT_EXECUTABLE, failed.strerror or "cannot be executed"
            else:
                code = _attend(child, waited)
            log.record(session, session_event("ended", code=code))
            log.finish(session)
        return UnisolatedResult(code, session, log.head(), error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _attend(child: int, waited: set[signal.Signals]) -> int:
    """Forward signals until it ends; returns its exit code as a shell does."""
    while True:
        heard = signal.sigwaitinfo(waited)
        if heard.si_signo != signal.SIGCHLD:
            # A terminal signals the whole foreground group, so the command has that signal already.
            if heard.si_code <= 0:  # sent by a process: SI_USER, SI_QUEUE, SI_TKILL
                os.kill(child, heard.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
