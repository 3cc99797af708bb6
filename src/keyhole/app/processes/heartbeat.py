"""Detects a data plane whose event loop is stuck: it sends beats, and another process counts them.

The data plane's event loop writes one byte to a pipe every `BEAT_SECONDS` (`HeartbeatSender`). The
control process reads that pipe on its own event loop at the same interval (`HeartbeatMonitor`). One
pattern match or one loop that never ends keeps the data plane's loop from turning, and no thread of
the same process could tell: the interpreter lock is held.

The monitor counts its own turns, not seconds. While the host is suspended, while the whole process
tree is stopped (Ctrl-Z, `docker pause`, a debugger), or while the host is too busy to run the
monitor, it does not turn either, so such time does not count against the data plane.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

BEAT_SECONDS = 0.5
"""Seconds between two beats of the data plane, and between two looks of the monitor."""

STUCK_SECONDS = 10.0
"""How long a data plane may go without a beat before it is ended. The longest turn of its loop that
was measured with 500 sessions on a loaded machine with two cores is below one second."""

STUCK_TURNS = round(STUCK_SECONDS / BEAT_SECONDS)
"""The same in turns of the monitor."""

QUIET_TURNS = 3
"""Turns without a beat after which the data plane is reported as silent: more than a busy host
delays one beat, and long before it is ended."""

_BEAT = b"."
_MANY = 4096


def make_heartbeat_pipe() -> tuple[int, int]:
    """A pipe for the beats: the end that the monitor reads, and the end that the data plane writes.

    Neither end blocks. Both are closed on exec; the data plane's parent passes the second on.
    """
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


class HeartbeatSender:
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
            pass  # the monitor has not looked for hours, and will find thousands
        except OSError:
            return  # there is no monitor any more
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def close(self) -> None:
        """Stop beating."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class HeartbeatReader:
    """Evaluates the reading end of the pipe, without a loop: call `turn` at each interval."""

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
        """Look once. Returns whether the data plane has turned since the last look."""
        try:
            heard = bool(os.read(self._descriptor, _MANY))
        except BlockingIOError:
            heard = False
        # End of file: the process has ended, which its pidfd reports sooner.
        self._missed = 0 if heard else self._missed + 1
        return heard

    def close(self) -> None:
        """Stop looking."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class HeartbeatMonitor:
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
        self._beats = HeartbeatReader(descriptor)
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
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._beats.close()
