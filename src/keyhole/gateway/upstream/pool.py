"""Connections to a host's origins that serve the next requests of the same session.

One pool for each inspected host of a session. A connection is kept under the name of the service,
or of the storage host, whose requests it served: credentials of two accounts never share one (I4).
Of HTTP/1.1 they wait here for a request; those of HTTP/2 stay here while they serve many.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from keyhole.gateway.upstream.http2 import Http2Origin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.gateway.upstream.origin import AnyOriginConnection, OriginConnection

MAX_IDLE_ORIGINS = 256
"""Connections kept for the next request, per service of a host: as many as a session may have open
by default. A new one costs as much as three requests."""

MAX_SHARED_ORIGINS = 16
"""Connections of HTTP/2 that are shared, per service of a host: at 100 streams each, more than a
session has requests. One beyond them ends with its request."""

IDLE_ORIGIN = 50.0
"""Seconds after which a kept connection is closed; servers commonly wait 60."""


class OriginPool:
    """The connections of one host."""

    __slots__ = ("_dialling", "_idle", "_retired", "_shared")

    def __init__(self) -> None:
        self._idle: dict[str, list[OriginConnection]] = {}
        self._shared: dict[str, list[Http2Origin]] = {}
        """HTTP/2 connections, busy or idle."""
        self._dialling: dict[str, asyncio.Event] = {}
        """Names that are dialled, while it is not known that their origin speaks HTTP/1.1."""
        self._retired = False

    # ── HTTP/2 ────────────────────────────────────────────────────────────────────────────────────

    def dialling(self, name: str) -> asyncio.Event | None:
        """The event that is set when a dial under way ends, if its connection may be shared."""
        return self._dialling.get(name)

    @contextlib.contextmanager
    def dial(self, name: str) -> Iterator[None]:
        """Dial in this block. Other requests wait for it, unless the origin is known to speak
        HTTP/1.1."""
        if name in self._idle or name in self._dialling:
            yield
            return
        done = self._dialling[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._dialling[name]
            # Those that wait wake up after the caller has put the connection into the pool.
            done.set()

    def share(
        self, name: str, reached: OriginConnection | Http2Origin, *, offered: bool = True
    ) -> AnyOriginConnection:
        """The connection that was dialled, or a stream of it if it is shared. HTTP/2 was
        `offered`."""
        if not isinstance(reached, Http2Origin):
            if offered:
                self._idle.setdefault(name, [])
            return reached
        shared = self._shared.setdefault(name, [])
        if self._retired or len(shared) >= MAX_SHARED_ORIGINS:
            return reached.open_last_stream()
        shared.append(reached)
        return reached.open_stream()

    def take_shared(self, name: str) -> AnyOriginConnection | None:
        """A stream of a connection of HTTP/2."""
        for connection in self._shared.get(name, ()):
            if connection.alive():
                return connection.open_stream()
        return None

    def take(self, name: str, *, http1: bool = False) -> AnyOriginConnection | None:
        """A stream of a shared connection, or a kept connection, the last one used first. With
        `http1`, a connection of HTTP/1.1 alone."""
        if self._shared and not http1:
            shared = self.take_shared(name)
            if shared is not None:
                return shared
        idle = self._idle.get(name)
        while idle:
            kept = idle.pop()
            if kept.is_free():
                return kept
        return None

    def keep(self, name: str, connection: OriginConnection, now: float) -> None:
        """Keep a connection, unless there are enough."""
        connection.channel.resume()
        idle = self._idle.setdefault(name, [])
        if self._retired or len(idle) >= MAX_IDLE_ORIGINS:
            connection.close()
            return
        connection.idle_since = now
        idle.append(connection)

    @property
    def size(self) -> int:
        """Connections that wait for a request."""
        kept = sum(map(len, self._idle.values()))
        return kept + sum(not each.busy for shared in self._shared.values() for each in shared)

    def sweep(self, now: float) -> None:
        """Close connections that have been idle for too long; forget those the origin closed."""
        for name, shared in self._shared.items():
            for each in shared:
                each.sweep(now, IDLE_ORIGIN)
            self._shared[name] = [each for each in shared if not each.closed]
        for name, idle in self._idle.items():
            for connection in idle:
                if now - connection.idle_since > IDLE_ORIGIN:
                    connection.close()
            self._idle[name] = [each for each in idle if each.is_free()]

    def retire(self) -> None:
        """Close all, and keep none from now on: the policy has changed, or the session has
        ended."""
        self._retired = True
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
        for shared in self._shared.values():
            for each in shared:
                each.retire()
        self._shared.clear()
