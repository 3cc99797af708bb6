"""The system's programs: where to look for them, and the error when one is missing."""

from __future__ import annotations

import os
from pathlib import Path

SEARCH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The directories of the system's programs. PATH is not used, since it may lead into the project
(I11)."""


def find_program(name: str) -> Path | None:
    """The path of a program of the system; None if it has none of that name."""
    for directory in SEARCH:
        path = Path(directory) / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    return None
