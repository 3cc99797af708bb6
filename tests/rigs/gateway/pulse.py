"""How long the loop of a gateway does one thing, by the CPU time of its thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rigs.gateway.rig import Rig


class Pulse:
    """The longest that the loop of a gateway did one thing."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._last = 0.0
        self._beats = False
        self.worst = 0.0

    def begin(self) -> None:
        self.worst, self._beats = 0.0, True
        self._rig.call(self._start)

    def end(self) -> float:
        self._beats = False
        return self._rig.call(lambda: self.worst)

    def _start(self) -> None:
        self._last = time.thread_time()
        self._beat()

    def _beat(self) -> None:
        now = time.thread_time()
        self.worst, self._last = max(self.worst, now - self._last), now
        if self._beats:
            self._rig.loop.call_soon(self._beat)
