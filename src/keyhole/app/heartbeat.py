"""Whether the data plane still turns: it beats, and another process counts the beats.

The data plane's event loop writes one byte to a pipe every `BEAT_SECONDS` (`Pulse`). The control
process reads that pipe on its own event loop at the same interval (`Watch`). One pattern match or
one loop that never ends keeps the data plane's loop from turning, and no thread of the same process
could tell: the interpreter lock is held.

The watch counts its own turns, not seconds. While the host is suspended, while the whole process
tree is stopped (Ctrl-Z, `docker pause`, a debugger), or while the host is too busy to run the
watch, it does not turn either, so that time of this kind does not count against the data plane.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

BEAT_SECONDS = 0.5
"""How often the data plane beats, and how often the watch looks."""

STUCK_SECONDS = 10.0
"""How long a data plane may go without a beat before it is ended. The longest turn of its loop that
was measured with 500 sessions on a loaded machine with two cores is below one second."""

STUCK_TURNS = round(STUCK_SECONDS / BEAT_SECONDS)
"""The same in turns of the watch."""

QUIET_TURNS = 3
"""After so many turns without a beat the data plane is reported as silent: later than one beat that
a busy host delays, and long before it is ended."""

_BEAT = b"."
_MANY = 4096


def make_pulse() -> tuple[int, int]:
    """A pipe for the beats: the end that the watch reads, and the one that the data plane writes.

    Neither end blocks. Both are closed on exec; whoever starts the data plane hands the second on.
    """
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


class Pulse:
    """The data plane's half: beats for as long as its loop turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        """`descriptor` is the writing end of the pipe, which is closed with this."""
        self._loop = loop
        self._descriptor = descriptor
        self._timer: asyncio.TimerHandle | None = None
        self._beat()

    def _beat(self) -> None:
        try:
            os.write(self._descriptor, _BEAT)
        except BlockingIOError:
            pass  # the watch has not looked for hours, and will find thousands
        except OSError:
            return  # there is no watch any more
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def close(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Beats:
    """What the reading end of the pipe tells, without a loop: `turn` is called at each interval."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the reading end, which is closed with this."""
        self._descriptor = descriptor
        self._missed = 0

    @property
    def quiet(self) -> bool:
        """Whether the data plane has not turned for longer than a busy host explains."""
        return self._missed >= QUIET_TURNS

    @property
    def stuck(self) -> bool:
        """Whether it has not turned for `STUCK_SECONDS` in which this process did."""
        return self._missed >= STUCK_TURNS

    def turn(self) -> bool:
        """Look once; whether the data plane has turned since the last time."""
        try:
            heard = bool(os.read(self._descriptor, _MANY))
        except BlockingIOError:
            heard = False
        # At the end of the file the process has ended: its pidfd tells that, and sooner.
        self._missed = 0 if heard else self._missed + 1
        return heard

    def close(self) -> None:
        """Look no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Watch:
    """The control process's half, on its loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        stuck: Callable[[], None],
        turned: Callable[[], None] = lambda: None,
    ) -> None:
        """`stuck` is called once; `turned` at each look that finds a beat."""
        self._loop = loop
        self._beats = Beats(descriptor)
        self._stuck = stuck
        self._turned = turned
        self._timer: asyncio.TimerHandle | None = loop.call_later(BEAT_SECONDS, self._look)

    @property
    def quiet(self) -> bool:
        """Whether the data plane has not turned for longer than a busy host explains."""
        return self._beats.quiet

    def _look(self) -> None:
        if self._beats.turn():
            self._turned()
        elif self._beats.stuck:
            self.close()
            self._stuck()
            return
        self._timer = self._loop.call_later(BEAT_SECONDS, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._beats.close()
