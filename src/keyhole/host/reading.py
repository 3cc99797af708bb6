"""Reads one settings file of the host, bounded.

Called wherever this room opens a file. It does not judge whether the file may be believed; that is
`Surroundings.trusts`.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE = 1024 * 1024
"""Bytes of a settings file: a thousand times what people write."""


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
    # A FIFO of that name would hold us for ever, and a terminal would become ours.
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
