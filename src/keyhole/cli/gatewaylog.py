"""What a gateway in the background says: one file, the user's alone, that never grows past a bound.

Standard output and error of the gateway. What happened in its sandboxes is in the audit log; here
are its own lines, and the words with which it broke.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import threading
import time
from typing import TYPE_CHECKING

from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1024 * 1024
"""Of the file: some ten thousand lines. Beyond it the older half is dropped."""

_KEPT = MAX_BYTES // 2
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogUnusable(Exception):
    """It cannot be written; the message says why."""


def open_log(path: Path) -> int:
    """A descriptor to read and append by. Opened before the gateway locks itself in."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, _OPEN, 0o600)
    except OSError as error:
        raise LogUnusable(f"{path}: {(error.strerror or 'cannot be opened').lower()}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise LogUnusable(f"{path}: is not a file of yours; move it away")
    os.fchmod(descriptor, 0o600)
    trim(descriptor)
    return descriptor


def trim(descriptor: int) -> None:
    """Drop the older half of a log that is full, up to a whole line. By the descriptor alone: a
    gateway that is locked in opens and renames nothing."""
    size = os.fstat(descriptor).st_size
    if size <= MAX_BYTES:
        return
    tail = os.pread(descriptor, _KEPT, size - _KEPT)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, tail[tail.find(b"\n") + 1 :])


def last_lines(descriptor: int, start: int, most: int) -> list[str]:
    """The last lines that were written after an offset, safe to show."""
    size = os.fstat(descriptor).st_size
    begin = max(start if start <= size else 0, size - _KEPT)
    text = os.pread(descriptor, _KEPT, begin).decode("utf-8", "replace")
    return [visible(line) for line in text.splitlines() if line.strip()][-most:]


class LogWriter(io.TextIOBase):
    """Stands for standard output and error in the gateway: bounded, and no byte that would move a
    terminal's cursor when somebody reads the file (I8)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """As of any log."""
        return "utf-8"

    def fileno(self) -> int:
        """The file itself."""
        return self._descriptor

    def writable(self) -> bool:
        """It is there to be written."""
        return True

    def write(self, text: str) -> int:
        """All of it at once, so that lines of several threads do not mix."""
        shown = "\n".join(visible(line) for line in text.split("\n"))
        # A full disk must not end the gateway for the sake of a line.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._descriptor, shown.encode("utf-8", "backslashreplace"))
            trim(self._descriptor)
        return len(text)

    def report(self, line: str) -> None:
        """A line with its time."""
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}\n")
