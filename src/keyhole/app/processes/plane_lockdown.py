"""Locks a data plane down, before it is given a secret and before it has a thread.

The same for a run's data plane and for that of `keyhole up`. They differ in whether modules are
still imported afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.confine.lockdown import lock_down
from keyhole.vault.memory_guard import guard_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keyhole.confine.lockdown import LockdownResult
    from keyhole.vault.memory_guard import MemoryGuard


def lock_down_plane(
    write: Sequence[Path], read: Sequence[Path] = ()
) -> tuple[MemoryGuard, tuple[LockdownResult, ...]]:
    """Give up starting processes, capabilities and core dumps, and all of the file system but these
    trees.

    Directories in `write` are made if they are missing. Raises OSError and Refused.
    """
    guard = guard_memory()
    for each in write:
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    return guard, lock_down(read, write)
