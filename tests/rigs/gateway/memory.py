"""How much memory this process has had at most since a moment."""

from __future__ import annotations

import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")
_FORGET_PEAK = "5"


class Peak:
    """The growth of this process's resident memory, measured by the kernel."""

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)
        self._before = _kibibytes("VmRSS")

    @property
    def grown(self) -> int:
        """Bytes between what was there at first and the most there was since."""
        return max(0, _kibibytes("VmHWM") - self._before) * 1024


def _kibibytes(name: str) -> int:
    line = next(each for each in _STATUS.read_text().splitlines() if each.startswith(f"{name}:"))
    return int(line.split()[1])
