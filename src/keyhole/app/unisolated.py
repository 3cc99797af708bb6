"""A command on the host itself, with nothing between: `--unsafe-no-isolation`.

Called by the verb that was typed so, never for a policy. No policy is read, no secret, no gateway:
what is not read cannot be handed over (I1). That it ran, and how it ended, is written down (I8).
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from keyhole.app.ahead import FORWARDED
from keyhole.app.session import new_session, session_event
from keyhole.audit.log import AuditLog
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REASON = "unsafe-no-isolation"
"""Of the session's first event, in the place of `started`."""

_EVENTS_PER_SECOND = 2
"""It began, it ended."""

NOT_EXECUTABLE, NOT_FOUND = 126, 127


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended, and the audit log's last digest; `error` is why it could not be started."""

    code: int
    session: str
    head: str
    error: str = ""


def run_here(command: tuple[str, ...], env: Mapping[str, str], audit: Path) -> Ended:
    """Run it to its end, in this process's place. Raises AuditUnusable before anything is run."""
    session, error = new_session(), ""
    # Before the log has its thread, which would take them.
    waited = {*FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        with AuditLog(audit) as log:
            log.begin(session, _EVENTS_PER_SECOND)
            log.record(session, session_event(REASON, command=command[0]))
            log.flush()  # what comes now could end us
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
        return Ended(code, session, log.head(), error)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _attend(child: int, waited: set[signal.Signals]) -> int:
    """Hand on what is sent to us, until it ends; its exit code, as a shell tells it."""
    while True:
        heard = signal.sigwaitinfo(waited)
        if heard.si_signo != signal.SIGCHLD:
            # What a terminal sends, the whole foreground hears; the command has it already.
            if heard.si_code <= 0:  # sent by a process: SI_USER, SI_QUEUE, SI_TKILL
                os.kill(child, heard.si_signo)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
