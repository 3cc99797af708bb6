"""An empty layer for a trial of the walls: two mounts must not share one layer."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING

from keyhole.changes.trash import Trash

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def scratch_layer(directory: str, owner: tuple[int, int]) -> Iterator[str]:
    """A layer in this directory of Keyhole's own, while the block lasts."""
    made = tempfile.mkdtemp(prefix="trial.", dir=directory)
    for name in ("upper", "work"):
        os.mkdir(f"{made}/{name}", 0o755)
        if os.geteuid() == 0:
            os.chown(f"{made}/{name}", *owner)
    try:
        yield made
    finally:
        trash = Trash(made)
        try:
            trash.empty()
        finally:
            trash.close()
        os.rmdir(made)
