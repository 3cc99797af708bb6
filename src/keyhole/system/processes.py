"""Facts of the kernel about other processes of this host. Quick to import."""

from __future__ import annotations

import contextlib
import os
import select
import signal

_START_FIELD = 19
"""In /proc/PID/stat, counted behind the name: when the process started, in ticks since boot."""


def started_ticks(pid: int) -> int | None:
    """The start of the process with this number; number and start together identify it for good."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # A process chooses its name, which may hold parentheses: the last one ends it.
            return int(file.read(4096).rpartition(b")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None


def has_ended(pidfd: int, seconds: float | None = 0.0) -> bool:
    """Whether a process, ours or not, ends within these seconds; None waits until it has."""
    # `select` cannot use a descriptor above 1023.
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))


def kill_process(pidfd: int) -> None:
    """End a process; it may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def reap_process(pidfd: int) -> None:
    """Reap a dead process, if it is a child of ours; if it is not, its parent does."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
