"""Holds a body on disk until it was judged, in an unlinked file that is never left behind.

Filled by `push_body.py` with a pushed pack and by `http/judged_body.py` with a long body; read by
the judge through its descriptor, and by `http/stream.py` when it is sent. The kernel removes the
file when the gateway or the connection ends, however it ends.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.errors import OverLimit, RequestUnfit
from keyhole.policy.limit import decide_total

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.gateway.session import SessionState

PIECE = 256 << 10
"""Bytes that are read back at a time."""

KEEP_FREE = 256 << 20
"""Bytes of the disk that quarantines leave to the host and to the audit log: bodies must not fill
it (I9)."""

MAX_SPOOLS = 64
"""Files of one session. Attack: a thousand long bodies that never end, and no descriptor is left
for the connections of others (I12)."""

MANY = f"{MAX_SPOOLS} long bodies of this sandbox wait already"
_UNKEPT = "a body cannot be kept"
WORDS = "bodies of this sandbox that wait take half of the room that this host has for them"


class Quarantine:
    """One body."""

    __slots__ = ("_file", "_offset", "_state", "size")

    def __init__(self, directory: Path | None, state: SessionState) -> None:
        """Raises RequestUnfit."""
        self.size = 0
        self._state = state
        self._offset = 0
        if state.spools >= MAX_SPOOLS:
            raise RequestUnfit(Reason.OVER_SHARE, MANY, "shares.spool")
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise RequestUnfit(Reason.DISK_FULL, f"{_UNKEPT}: {error.strerror}") from None
        state.spools += 1

    @property
    def fd(self) -> int:
        """The open file."""
        return self._file.fileno()

    @property
    def left(self) -> int:
        """Bytes that are not read back yet."""
        return self.size - self._offset

    def write(self, data: bytes) -> None:
        """Add bytes. Raises OverLimit or RequestUnfit."""
        limit = self._state.session.book.policy.limits.upload
        if self._state.quarantined + len(data) > limit:
            raise OverLimit(decide_total("upload", self._state.quarantined, len(data), limit))
        # Each time: between two checks, many pushes could write past the bound.
        found = os.fstatvfs(self.fd)
        room = found.f_bavail * found.f_frsize - KEEP_FREE - len(data)
        if room < 0:
            raise RequestUnfit(Reason.DISK_FULL, "")
        if self._state.quarantined + len(data) > room:
            # A session has no more on the disk than is left for others, so that another session
            # always has room (I12).
            raise RequestUnfit(Reason.OVER_SHARE, WORDS, "shares.spool")
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise RequestUnfit(Reason.DISK_FULL, f"{_UNKEPT}: {error.strerror}") from None
        self.size += len(data)
        self._state.quarantined += len(data)

    def read(self) -> bytes:
        """The next bytes; empty at the end."""
        data = os.pread(self.fd, min(PIECE, self.left), self._offset)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Close the file, which frees the disk."""
        if self._file.closed:
            return
        self._state.quarantined -= self.size
        self._state.spools -= 1
        self.size = 0
        self._file.close()
