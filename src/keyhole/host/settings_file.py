"""Reads one settings file of the host, bounded.

Called wherever this room opens a file. It does not decide whether the file is trusted; that is
`HostEnvironment.trusts`.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE = 1024 * 1024
"""Bytes of a settings file: a thousand times the usual size."""


def read_text(path: Path) -> str | None:
    """The text of a regular file of at most `MAX_FILE` bytes, else None."""
    try:
        with open(path, "rb", opener=_opener) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            data = file.read(MAX_FILE + 1)
    except (OSError, ValueError):
        return None
    return data.decode("utf-8", "replace").removeprefix("\ufeff") if len(data) <= MAX_FILE else None


def _opener(path: str, flags: int) -> int:
    # Opening a FIFO would block for ever, and a terminal could become the controlling one.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
