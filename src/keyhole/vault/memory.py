"""Keeps this process's memory to itself, before a secret is in it: no core, no tracer, no swap.

Called where a process begins that will hold secrets: `keyhole run` and `keyhole secret`. A program
that it starts afterwards is dumpable again (prctl(2): execve), but has the limit on core files.
"""

from __future__ import annotations

import ctypes
import resource

from keyhole.model.value import dataclass

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class Guard:
    """What holds from now on."""

    hidden: bool = False
    """No core is written, and no process of the user's reads or traces this one."""
    locked: bool = False
    """No page of it goes to the swap."""


def guard_memory() -> Guard:
    """All that this host allows. Not to be read is a must, not to be swapped out is wished for.

    Raises OSError.
    """
    # A crash would write all secrets into a file in the project, or hand them to a collector. The
    # limit alone does not hold for a collector that is a program (core(5)), so there are two.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(DUMPABLE)")
    return Guard(hidden=True, locked=_lock(libc))


def _lock(libc: ctypes.CDLL) -> bool:
    """Each page as it is first used; only where no limit could then refuse memory later on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not _may_lock():
        if hard != resource.RLIM_INFINITY:
            return False
        if soft != hard:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    flags = _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT
    return bool(libc.mlockall(flags) == 0)


def holds_memory() -> bool:
    """Whether pages of this process are locked now."""
    return _status("VmLck:") > 0


def _may_lock() -> bool:
    """Whether limits do not count, by a capability. Whoever drops it later unlocks first."""
    return bool(_status("CapEff:", 16) >> _CAP_IPC_LOCK & 1)


def _status(name: str, base: int = 10) -> int:
    """A number that the kernel says of this process; 0 where it says none."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            words = next(line.split() for line in file if line.startswith(name))
        return int(words[1], base)
    except (OSError, StopIteration, ValueError, IndexError):
        return 0
