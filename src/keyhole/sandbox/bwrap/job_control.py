"""Job control of a command inside, from outside: whether it is stopped, signals, continuing it.

Used for a run's own command by `bwrap_start.py`, and for a further one by `keyhole exec`.
"""

from __future__ import annotations

import contextlib
import os
import signal

from keyhole.model.errors import SetupFailed


def child_of(pid: int) -> int | None:
    """The first child of a process, as the host numbers it; None if it has none, or has ended."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except FileNotFoundError:
        if not os.path.exists("/proc/thread-self/children"):
            raise SetupFailed("this kernel does not list children (CONFIG_PROC_CHILDREN)") from None
        return None
    except OSError:
        return None
    return int(children[0]) if children else None


def is_stopped(pid: int | None) -> bool:
    """Whether a command itself is stopped, as by Ctrl-Z.

    A shell that starts a program waits in vfork() until the child has called exec. If the key is
    pressed in between, the child is stopped, and the shell waits for it without being stopped
    itself.
    """
    state = _state_of(pid)
    if state == "D" and pid is not None:
        state = _state_of(child_of(pid))
    return state == "T"


def continue_job(pid: int) -> None:
    """Continue a command after Ctrl-Z, and with it all stopped processes of its job."""
    with contextlib.suppress(ProcessLookupError):
        job = os.getpgid(pid)
        if job != os.getpgrp():
            os.killpg(job, signal.SIGCONT)


def _state_of(pid: int | None) -> str:
    """The letter of its state, as in proc(5); empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
