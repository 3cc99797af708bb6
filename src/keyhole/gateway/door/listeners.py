"""The listening sockets of a session: accepted on while there is room, and within its turn.

Used by the door and by the published ports, each with its own rule for when to pause. During a
pause new connections wait in the kernel's queue, which is bounded (I9). Accepting spends the
session's share of the loop (I12).
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Iterable

    from keyhole.gateway.session import SessionState

ACCEPTS_PER_TICK = 16
"""Connections taken from one listener before the loop looks at the others."""


class Listeners:
    """Listening sockets that can be paused."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        state: SessionState,
        sockets: Iterable[socket.socket],
        accept: Callable[[socket.socket], None],
    ) -> None:
        """`accept` takes up to `ACCEPTS_PER_TICK` connections of a listener. Nothing is accepted
        before the first `resume`."""
        self._loop = loop
        self._state = state
        self._sockets = tuple(sockets)
        self._accept = accept
        self._timer: asyncio.TimerHandle | None = None
        self._open = True
        self._accepting = False
        self._put_off: set[socket.socket] = set()
        """Listeners with connections that wait for the session's turn."""
        for each in self._sockets:
            each.setblocking(False)

    def resume(self) -> None:
        """Accept again, unless a pause for a time is not over yet."""
        if self._timer is None:
            self._start()

    def pause(self, seconds: float | None = None) -> None:
        """Leave new connections in the kernel's queue: for this time, or until `resume`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepting:
            self._accepting = False
            for each in self._sockets:
                self._loop.remove_reader(each)
        if seconds is not None:
            self._timer = self._loop.call_later(seconds, self._pause_over)

    def close(self) -> None:
        """Accept nothing any more. The caller closes the sockets."""
        self._open = False
        self.pause()

    def _pause_over(self) -> None:
        self._timer = None
        self._start()

    def _start(self) -> None:
        if self._open and not self._accepting:
            self._accepting = True
            for each in self._sockets:
                self._loop.add_reader(each, self._acceptable, each)

    def _acceptable(self, listener: socket.socket) -> None:
        turn = self._state.turn
        if turn.left > 0:
            began = perf_counter()
            self._accept(listener)
            turn.spend(began)
        elif listener not in self._put_off:
            # Behind what waits: connections that use up each turn must not keep others out.
            self._put_off.add(listener)
            turn.later(partial(self._accept_later, listener))

    def _accept_later(self, listener: socket.socket) -> None:
        self._put_off.discard(listener)
        if self._accepting:
            self._accept(listener)
