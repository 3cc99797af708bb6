"""A WebSocket's frames from the origin, passed once they are known to hold no secret (I7).

Made by `exchange.py` after a right handshake. Compression was never offered, so payloads are plain;
each message is scanned as one text, over its fragments, and a match ends the connection.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from keyhole.inject.encoded import Reflected
from keyhole.inject.scrub import Scrubber
from keyhole.wire.websocket import FrameReader

if TYPE_CHECKING:
    from keyhole.inject.scrub import Needles


class FrameScan:
    """The frames of one connection."""

    __slots__ = ("_needles", "_pending", "_reader", "_scrubber", "_unsent")

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._reader = FrameReader()
        self._scrubber = Scrubber(needles)
        self._pending: deque[tuple[bytes, int]] = deque()
        """Wire bytes that wait, each with how many bytes of payload end it."""
        self._unsent = 0

    def feed(self, data: bytes) -> bytes:
        """Wire bytes that may go on. Raises Malformed or Reflected."""
        pieces = self._reader.feed(data)
        if not self._needles:
            return data
        passed: list[bytes] = []
        for piece in pieces:
            if piece.control:
                # Between the fragments of a message: it must not overtake what is held back.
                if self._needles.found_in(piece.payload):
                    raise Reflected
                self._pending.append((piece.data, 0))
            else:
                self._scan(piece.data, piece.payload, piece.ends_message)
            self._release(passed)
        return b"".join(passed)

    def _scan(self, data: bytes, payload: bytes, ends: bool) -> None:
        self._pending.append((data, len(payload)))
        self._unsent += len(payload)
        scrubber = self._scrubber
        scrubber.feed(payload)
        if ends:
            scrubber.end()
        if scrubber.hits:
            raise Reflected

    def _release(self, passed: list[bytes]) -> None:
        """Let go of all but the payload that a secret could begin in."""
        pending, held = self._pending, self._scrubber.held
        while pending:
            data, size = pending[0]
            if self._unsent - size >= held:
                pending.popleft()
                passed.append(data)
                self._unsent -= size
                continue
            free = self._unsent - held
            if free:
                cut = len(data) - size + free
                passed.append(data[:cut])
                pending[0] = (data[cut:], size - free)
                self._unsent -= free
            return
