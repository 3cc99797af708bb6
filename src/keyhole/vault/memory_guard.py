"""Protects this process's memory before a secret is in it: no core, no tracer, no swap.

Called at the start of a process that will hold secrets: `keyhole run` and `keyhole secret`. A
program that it starts afterwards is dumpable again (prctl(2): execve), but has the limit on core
files.
"""

from __future__ import annotations

import ctypes
import resource

from msgspec import Struct

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_CAP_IPC_LOCK = 14


class MemoryGuard(Struct, frozen=True):
    """The protections of this process's memory that hold."""

    hidden: bool = False
    """No core is written, and no process of the user can read or trace this one."""
    locked: bool = False
    """No page of it is swapped out."""


def guard_memory() -> MemoryGuard:
    """Protect the memory as far as this host allows. Protection from other processes is required,
    protection from swapping is optional.

    Raises OSError.
    """
    # A crash would write all secrets into a file in the project, or hand them to a collector. The
    # limit alone does not hold for a collector that is a program (core(5)), so there are two.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(DUMPABLE)")
    return MemoryGuard(hidden=True, locked=_lock(libc))


def _lock(libc: ctypes.CDLL) -> bool:
    """Lock each page when it is first used, unless a limit could then refuse memory later."""
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
    """Whether a capability exempts us from the limit. Code that drops it later unlocks first."""
    return bool(_status("CapEff:", 16) >> _CAP_IPC_LOCK & 1)


def _status(name: str, base: int = 10) -> int:
    """A number from this process's kernel status; 0 when it is absent."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            words = next(line.split() for line in file if line.startswith(name))
        return int(words[1], base)
    except (OSError, StopIteration, ValueError, IndexError):
        return 0
