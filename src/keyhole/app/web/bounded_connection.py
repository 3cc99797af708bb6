"""A connection of the web server that is cut unless it sends requests.

Any user of this host can connect. uvicorn waits for a first request for ever, and answers nobody
above its limit, so that a few dozen silent connections would end the page for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_SECONDS = 10.0
"""How long the head of a request may take; a browser sends it at once."""


class BoundedConnection(H11Protocol):
    """Cut when a head takes too long, or when others need its place meanwhile."""

    head_seconds: ClassVar[float] = HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn stops its own clock at the first byte of a further request.
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._cut)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._stop_clock()
        self.connections.discard(self)  # its place is free now, not in the loop's next round
        self.transport.abort()

    def _make_room(self) -> None:
        """Cut the one that has been silent for longest."""
        waiting = [
            (each._deadline.when(), number, each)
            for number, each in enumerate(self.connections)
            if isinstance(each, BoundedConnection)
            and each is not self
            and each._deadline is not None
        ]
        if waiting:
            min(waiting)[2]._cut()
