"""Where a pushed pack waits on disk until it was judged: an unlinked file, never left behind.

Filled by `pushbody.py`, read by the judge through its descriptor and by `exchange.py` when the push
is sent on. Whatever ends the gateway or the connection, the kernel takes the file with it.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from keyhole.gateway import refusal
from keyhole.gateway.refusal import Unfit
from keyhole.gateway.session import OverLimit
from keyhole.model.decision import Reason
from keyhole.policy.limit import decide_total

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.gateway.session import SessionState

PIECE = 256 << 10
"""Bytes that are read back at a time."""

KEEP_FREE = 256 << 20
"""Bytes of its disk that quarantines leave to the host and to the audit log: pushes must not fill
it (I9)."""


WORDS = "pushes of this sandbox that wait take half of the room that this host has for them"


class Quarantine:
    """The body of one push."""

    __slots__ = ("_file", "_offset", "_state", "size")

    def __init__(self, directory: Path | None, state: SessionState) -> None:
        self.size = 0
        self._state = state
        self._offset = 0
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115

    @property
    def fd(self) -> int:
        """The open file."""
        return self._file.fileno()

    @property
    def left(self) -> int:
        """Bytes that were not read back yet."""
        return self.size - self._offset

    def write(self, data: bytes) -> None:
        """Add bytes. Raises OverLimit or Unfit."""
        limit = self._state.session.book.policy.limits.upload
        if self._state.quarantined + len(data) > limit:
            raise OverLimit(decide_total("upload", self._state.quarantined, len(data), limit))
        # Each time: what many pushes write between two looks would be past the bound already.
        found = os.fstatvfs(self.fd)
        room = found.f_bavail * found.f_frsize - KEEP_FREE - len(data)
        if room < 0:
            raise Unfit(refusal.DISK_FULL, "")
        if self._state.quarantined + len(data) > room:
            # A session has no more on the disk than is left for others, so that there is always
            # something left for another (I12).
            raise Unfit(Reason.OVER_SHARE, WORDS, "shares.spool")
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise Unfit(refusal.DISK_FULL, f"a push cannot be kept: {error.strerror}") from None
        self.size += len(data)
        self._state.quarantined += len(data)

    def read(self) -> bytes:
        """The next bytes; empty at the end."""
        data = os.pread(self.fd, min(PIECE, self.left), self._offset)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Give the disk back."""
        self._state.quarantined -= self.size
        self.size = 0
        self._file.close()
