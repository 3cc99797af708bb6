"""The chain of lines and the files that hold it: append, rotate, close.

Called by the writer's thread alone. A batch is written whole, or removed again when the disk
refuses: after a failure the next line starts on a line of its own, and the chain goes on from the
last line on disk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from keyhole.audit.log_line import (
    MAX_LINE,
    LineDraft,
    chain_line,
    draft_line,
    line_digest,
    own_event,
)
from keyhole.audit.reserve import DiskReserve

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from keyhole.audit.log_directory import LogDirectory

OPENED, ROTATED, CLOSED = "opened", "rotated", "closed"
JOINED = "joined"
"""Reason of an event that holds the digest of the last line of another chain."""

_ROTATION_ROOM = 1024
"""Bytes that a file keeps free for its last line."""


class Chain:
    """One writer's lines, over one file after another."""

    def __init__(
        self,
        directory: LogDirectory,
        wall: Callable[[], float],
        max_file: int = 64 * 1024 * 1024,
        ahead: int = 0,
    ) -> None:
        """`ahead`: bytes to allocate on the disk beyond those written."""
        self._directory = directory
        self._wall = wall
        self._ahead = ahead
        self.scarce = False
        """Whether the disk has no more room than was allocated ahead."""
        self._max_file = max(max_file, 2 * MAX_LINE)
        self._id = secrets.token_hex(32)
        self._seq, self._head = 0, self._id
        self._after = ""
        self._file = _File(directory, wall())

    @property
    def head(self) -> str:
        """The digest of the last line that was written."""
        return self._head

    @property
    def name(self) -> str:
        """The file that is written now."""
        return self._file.name

    def append(self, queue: deque[LineDraft]) -> bool:
        """Write the drafts, removing each from the queue; says whether a new file was begun.

        On OSError the drafts that are still in the queue were not written.
        """
        begun = False
        if self._file.is_gone():
            # Someone removed the file. The next lines go to a new one, and the gap shows.
            self._switch(_File(self._directory, self._wall()))
            begun = True
        while True:
            page = _Page(self._seq, self._head)
            if self._file.size == 0:
                page.add(self._opening(queue[0].at if queue else self._wall()))
            taken, full = 0, self._max_file - self._file.size - _ROTATION_ROOM - MAX_LINE
            for item in queue:
                # No room can be allocated for the next file, so this one goes on.
                if taken and len(page.data) > full and not self.scarce:
                    break
                page.add(item)
                taken += 1
            if taken < len(queue):
                self._rotate(page, queue[taken].at)
                begun = True
            elif page.data:
                self._commit(page)
            for _ in range(taken):
                queue.popleft()
            if not queue:
                return begun

    def allocate(self) -> None:
        """Allocate room ahead; `scarce` says whether it failed."""
        self.scarce = not self._file.allocate(self._ahead)

    def sync(self) -> None:
        """Wait until the disk holds all that was written."""
        self._file.sync()

    def close(self) -> None:
        """Write the last line and let go of the file."""
        try:
            page = _Page(self._seq, self._head)
            if self._file.size == 0:
                page.add(self._opening(self._wall()))
            page.add(self._own(self._wall(), CLOSED))
            self._commit(page)
            self._file.sync()
        finally:
            self._file.close()

    def discard(self) -> None:
        """Remove the file, which no line names yet."""
        self._file.discard()

    def _rotate(self, page: _Page, at: float) -> None:
        # The next file exists before it is named: a crash between leaves an empty file, no gap.
        following = _File(self._directory, self._wall())
        following.allocate(self._ahead)  # before the old file's reserve is released
        page.add(self._own(at, ROTATED, next=following.name))
        try:
            self._commit(page)
        except OSError:
            following.discard()
            raise
        self._switch(following)

    def _switch(self, following: _File) -> None:
        full, self._file = self._file, following
        self._after = full.name
        try:
            full.sync()
        finally:
            full.close()

    def _commit(self, page: _Page) -> None:
        self._file.write(page.data)
        self._seq, self._head = page.seq, page.head

    def _opening(self, at: float) -> LineDraft:
        """The first line, with the time of the next event: readers merge files by time."""
        details = {"file": self._file.name, "chain": self._id, "after": self._after}
        return self._own(at, OPENED, **details, pid=os.getpid())

    @staticmethod
    def _own(at: float, reason: str, **details: str | int) -> LineDraft:
        return draft_line(at, "", own_event(reason, good=True, details=details.items()))


class _Page:
    """Lines of one write."""

    def __init__(self, seq: int, head: str) -> None:
        self.seq, self.head = seq, head
        self.data = bytearray()

    def add(self, item: LineDraft) -> None:
        line = chain_line(item, self.seq, self.head)
        self.data += line
        self.data += b"\n"
        self.seq += 1
        self.head = line_digest(line)


class _File:
    """A log file that never holds part of a batch."""

    def __init__(self, directory: LogDirectory, at: float) -> None:
        self._directory = directory
        self.name, self._fd = directory.create(at)
        self.size = 0
        self._torn = False
        self._reserve = DiskReserve(self._fd)

    def is_gone(self) -> bool:
        """Whether the file was removed from its directory."""
        return os.fstat(self._fd).st_nlink == 0

    def write(self, data: bytes | bytearray) -> None:
        """Write all of it or nothing."""
        self._mend()
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # tried again before the next write
                self._mend()
            raise
        self.size += len(data)

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._fd, self.size)
            self._torn = False

    def allocate(self, ahead: int) -> bool:
        """Allocate blocks for so many bytes behind the end; False if the disk is full."""
        return self._reserve.ensure(self.size, ahead)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._reserve.release(self.size)
        os.close(self._fd)

    def discard(self) -> None:
        """Remove a file that no line names yet."""
        with contextlib.suppress(OSError):
            self._directory.remove(self.name)
        self.close()
