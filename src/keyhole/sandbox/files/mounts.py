"""The host's mount points: other file systems in a bound tree are shown only if the policy says
so."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ESCAPE = re.compile(rb"\\([0-7]{3})")


def read_mount_points(table: Path = Path("/proc/self/mountinfo")) -> tuple[str, ...]:
    """The mount points of this process's namespace, as proc(5) describes the table."""
    lines = table.read_bytes().rstrip(b"\n").split(b"\n")
    # Field five is the mount point; space, tab, newline and backslash are written in octal.
    raw = [_ESCAPE.sub(lambda m: bytes([int(m[1], 8)]), line.split(b" ")[4]) for line in lines]
    return tuple(sorted({os.fsdecode(path) for path in raw}))
