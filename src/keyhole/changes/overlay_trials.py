"""The trees over which an overlay could be mounted since this boot, so that a run need not try it
again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.changes.base_record import read_record, write_record

if TYPE_CHECKING:
    from pathlib import Path

_BOOT = "/proc/sys/kernel/random/boot_id"


class OverlayTrials:
    """A record in the directory of a project's views."""

    def __init__(self, file: Path) -> None:
        self._file = str(file)
        with open(_BOOT, encoding="ascii") as boot:
            self._boot = boot.read().strip()

    def holds(self, tree: str) -> bool:
        """Whether it was tried and worked, on these file systems."""
        return read_record(self._file).get(tree) == self._key(tree)

    def keep(self, tree: str) -> None:
        """Remember that it works."""
        write_record(self._file, read_record(self._file) | {tree: self._key(tree)})

    def _key(self, tree: str) -> str:
        layer = os.stat(os.path.dirname(self._file)).st_dev
        return f"{self._boot} {os.getuid()} {os.stat(tree).st_dev} {layer}"
