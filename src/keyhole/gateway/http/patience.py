"""The timeouts of a client's connection: how long it may be silent, how slowly a body may move
(I9).

Checked by the door's sweep, so that an open connection has no timer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.http.states import State
from keyhole.model.decision import Reason
from keyhole.policy.limit import PaceCheck

if TYPE_CHECKING:
    from keyhole.gateway.http.http1 import Http1Connection

HEAD_TIMEOUT = 20.0
"""Seconds for a request's head once its first byte has come."""

KEEP_ALIVE = 120.0
"""Seconds between two requests of a connection."""


class Patience:
    """The clocks of one connection."""

    __slots__ = ("_in_head", "_moved", "_moved_at", "_pace", "_since")

    def __init__(self, now: float) -> None:
        self._since = self._moved_at = now
        self._moved = 0
        """The bytes that had passed at the last check."""
        self._in_head = False
        self._pace: PaceCheck | None = None

    def restart(self, now: float) -> None:
        """Restart the clocks: a handshake, a response or a part of a push is done."""
        self._since = now
        self._in_head = False

    def head_begun(self, now: float) -> None:
        """A part of a head has arrived; the time of the first call counts."""
        if not self._in_head:
            self._in_head = True
            self._since = now

    def request_begun(self, moved: int, now: float) -> None:
        """Count silence from now; `moved` bytes have passed."""
        self._moved = moved
        self._moved_at = now
        self._in_head = False

    def is_stale(self, connection: Http1Connection, now: float, idle_timeout: float) -> bool:
        """Whether the connection has been silent for too long in its present state."""
        if connection.stream is None:
            allowed = HEAD_TIMEOUT if connection.machine.held else KEEP_ALIVE
            return now - self._since > allowed
        moved = connection.up + connection.down
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        return now - max(self._moved_at, self._since) > idle_timeout

    def find_slow(self, connection: Http1Connection, now: float) -> str:
        """Why the connection must end, if the peer that it waits for moves too few bytes."""
        reason, moved = waits_for(connection)
        pace = self._pace
        if pace is None:
            if not reason:
                return ""
            pace = self._pace = PaceCheck()
        lags = pace.lags(reason, moved, now, connection.state.limits.body_time)
        return reason if lags else ""


def waits_for(connection: Http1Connection) -> tuple[str, int]:
    """The reason that names the peer which holds up a body, and the bytes that it has moved.

    An origin may take its time to answer: models think.
    """
    stream, channel = connection.stream, connection.channel
    if channel.slow and channel.transport is not None:
        return Reason.CLIENT_SLOW, connection.down - channel.unsent
    machine = connection.machine
    if machine.request is not State.BODY or machine.paused:
        return "", connection.up
    if stream is not None and stream.origin is not None and stream.origin.slow:
        return Reason.UPSTREAM_SLOW, connection.up
    return Reason.CLIENT_SLOW, connection.up


class StreamClock:
    """The clocks of one stream among many of its connection."""

    __slots__ = ("_moved", "_pace", "_since")

    def __init__(self, now: float) -> None:
        self._moved = 0
        self._since = now
        self._pace: PaceCheck | None = None

    def restart(self, now: float) -> None:
        """Restart the clock after work that moved no bytes of the client."""
        self._since = now

    def is_stale(self, moved: int, now: float, idle_timeout: float) -> bool:
        """Whether no byte has moved for too long."""
        if moved != self._moved:
            self._moved, self._since = moved, now
        return now - self._since > idle_timeout

    def is_slow(self, reason: str, moved: int, now: float, body_time: float) -> bool:
        """Whether the peer that `reason` names moves too few bytes."""
        if self._pace is None:
            if not reason:
                return False
            self._pace = PaceCheck()
        return self._pace.lags(reason, moved, now, body_time)
