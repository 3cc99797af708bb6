"""Checks that mounts which cover files stay in place while the sandbox runs.

Since Linux 3.18, renaming or removing a file outside detaches the mounts on it in every other
namespace: `git config` or an editor on the host would uncover masked or read-only files inside (I1,
I11). The kernel reports when a namespace's mounts change; then they are compared.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING

from keyhole.sandbox.sandbox_init import mount_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class MountWatch:
    """Calls `lost` once, from a thread of its own, with the targets that are no longer mounted."""

    def __init__(
        self, process: int, targets: Iterable[str], lost: Callable[[tuple[str, ...]], None]
    ) -> None:
        self._targets = frozenset(targets)
        self._lost = lost
        self._mounts = os.open(f"/proc/{process}/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        os.write(self._stop_write, b"x")
        self._thread.join()
        for descriptor in (self._mounts, self._stop_read, self._stop_write):
            os.close(descriptor)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._mounts, select.POLLPRI | select.POLLERR)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            missing = self._missing()
            if missing:
                self._lost(missing)
                return
            if any(descriptor == self._stop_read for descriptor, _ in poll.poll()):
                return

    def _missing(self) -> tuple[str, ...]:
        mounted = set()
        with contextlib.suppress(OSError):
            os.lseek(self._mounts, 0, os.SEEK_SET)
            data = b""
            while more := os.read(self._mounts, 1 << 20):
                data += more
            mounted = set(mount_table(os.fsdecode(data)))
        # A namespace that has just ended has no mounts and no process.
        return tuple(sorted(self._targets - mounted)) if mounted else ()
