"""The log of a gateway in the background: one file of bounded size that only the user can read.

It receives the gateway's standard output and error: its own messages, and the error it ended with.
Events of sandboxes are in the audit log.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

from keyhole.model.errors import ResourceUnusable
from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1024 * 1024
"""About ten thousand lines. When the file is larger, its older half is dropped."""

_KEPT = MAX_BYTES // 2
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_log(path: Path) -> int:
    """Open the log to read and append. Called before the gateway's lock-down."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, _OPEN, 0o600)
    except OSError as error:
        raise ResourceUnusable(
            f"{path}: {(error.strerror or 'cannot be opened').lower()}"
        ) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise ResourceUnusable(f"{path}: is not a file of yours; move it away")
    os.fchmod(descriptor, 0o600)
    trim(descriptor)
    return descriptor


def trim(descriptor: int) -> None:
    """Drop the older half of a full log, up to a whole line.

    Uses the descriptor alone, because a gateway after its lock-down can open and rename nothing.
    """
    size = os.fstat(descriptor).st_size
    if size <= MAX_BYTES:
        return
    tail = os.pread(descriptor, _KEPT, size - _KEPT)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, tail[tail.find(b"\n") + 1 :])


def last_lines(descriptor: int, start: int, most: int) -> list[str]:
    """The last lines that were written after an offset, without control characters."""
    size = os.fstat(descriptor).st_size
    begin = max(start if start <= size else 0, size - _KEPT)
    text = os.pread(descriptor, _KEPT, begin).decode("utf-8", "replace")
    return [visible(line) for line in text.splitlines() if line.strip()][-most:]


class LogWriter(io.TextIOBase):
    """The gateway's standard output and error: bounded, and without bytes that would move a
    terminal's cursor when somebody reads the file (I8)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Always UTF-8."""
        return "utf-8"

    def fileno(self) -> int:
        """The log file's descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """Always true."""
        return True

    def write(self, text: str) -> int:
        """Write the text at once, so that lines of several threads do not mix."""
        shown = "\n".join(visible(line) for line in text.split("\n"))
        # A full disk must not end the gateway because of one line.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._descriptor, shown.encode("utf-8", "backslashreplace"))
            trim(self._descriptor)
        return len(text)

    def report(self, line: str) -> None:
        """Write a line with the time."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
