"""A WebSocket's frames from the origin, passed once they are known to hold no secret (I7).

Made by `exchange.py` after a right handshake. Compression was never offered, so payloads are plain;
each message is scanned as one text, over its fragments, and a match ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from keyhole.inject.encoded import Reflected
from keyhole.inject.scrub import Scrubber
from keyhole.wire.httpfield import Malformed
from keyhole.wire.websocket import FrameReader

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles

Hear = Callable[[bytes, bool], None]
"""Told a part of a message, and whether it is the last."""

MAX_EMPTY = 64
"""Frames without payload that wait behind a message whose end is held back: pings and empty
fragments would otherwise fill the memory until the message goes on (I9)."""


class FrameScan:
    """The frames of one connection."""

    __slots__ = ("_empty", "_needles", "_pending", "_reader", "_scrubber", "_unsent")

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._reader = FrameReader()
        self._scrubber = Scrubber(needles)
        self._pending: deque[tuple[bytes, int]] = deque()
        """Wire bytes that wait, each with how many bytes of payload end it."""
        self._unsent = 0
        self._empty = 0

    def feed(self, data: bytes, hear: Hear | None = None) -> bytes:
        """Wire bytes that may go on; `hear` is told what messages say. Raises Malformed, Reflected
        or what that raises."""
        pieces = self._reader.feed(data)
        if hear is not None:
            for piece in pieces:
                if not piece.control:
                    hear(piece.payload, piece.ends_message)
        if not self._needles:
            return data
        passed: list[bytes] = []
        for piece in pieces:
            if piece.control:
                # Between the fragments of a message: it must not overtake what is held back.
                if self._needles.found_in(piece.payload):
                    raise Reflected
                self._wait(piece.data, 0)
            else:
                self._scan(piece.data, piece.payload, piece.ends_message)
            self._release(passed)
        return b"".join(passed)

    def _scan(self, data: bytes, payload: bytes, ends: bool) -> None:
        self._wait(data, len(payload))
        scrubber = self._scrubber
        scrubber.feed(payload)
        if ends:
            scrubber.end()
        if scrubber.hits:
            raise Reflected

    def _wait(self, data: bytes, size: int) -> None:
        self._pending.append((data, size))
        self._unsent += size
        self._empty += not size

    def _release(self, passed: list[bytes]) -> None:
        """Let go of all but the payload that a secret could begin in."""
        pending, held = self._pending, self._scrubber.held
        while pending:
            data, size = pending[0]
            if self._unsent - size >= held:
                pending.popleft()
                passed.append(data)
                self._unsent -= size
                self._empty -= not size
                continue
            if self._empty > MAX_EMPTY:
                raise Malformed("too many empty frames within a message")
            free = self._unsent - held
            if free:
                cut = len(data) - size + free
                passed.append(data[:cut])
                pending[0] = (data[cut:], size - free)
                self._unsent -= free
            return
