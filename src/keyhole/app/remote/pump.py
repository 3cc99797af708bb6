"""Passes bytes between a remote door's TLS connection and its session's relay.

Used by `listener.py`. It reads each side only as fast as the other accepts bytes.
"""

from __future__ import annotations

import asyncio
from typing import cast

_BUFFER = 256 * 1024
"""Bytes that may wait for one side; beyond that the other side is not read."""


class Pump(asyncio.Protocol):
    """The connection to the relay, joined with the given connection to the door."""

    def __init__(self, other: asyncio.Transport) -> None:
        self._other = other
        self._transport: asyncio.Transport | None = None
        other.set_write_buffer_limits(high=_BUFFER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection to the relay is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        """Pass bytes from the relay to the door."""
        self._other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        """The relay has ended the connection."""
        self._other.abort()

    def pause_writing(self) -> None:
        """The relay reads slowly."""
        self._other.pause_reading()

    def resume_writing(self) -> None:
        """The relay has read."""
        self._other.resume_reading()

    # ── the door's side ───────────────────────────────────────────────────────────────────────────

    def other_received(self, data: bytes) -> None:
        """Pass bytes from the door to the relay."""
        if self._transport is not None:
            self._transport.write(data)

    def other_lost(self) -> None:
        """The door is gone."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """The door reads slowly."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """The door has read."""
        if self._transport is not None:
            self._transport.resume_reading()
