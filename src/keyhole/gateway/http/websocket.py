"""A WebSocket's frames: the origin's pass once they are known to hold no secret (I7), the client's
are searched for a canary.

Made by `response.py` after a right handshake. Compression was never offered, so payloads are plain;
each message is scanned as one text, over its fragments, and a match ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from keyhole.inject.canary import CanaryScanner
from keyhole.inject.scrub import Scrubber
from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, ResponseUnfit
from keyhole.wire.websocket import ClientFrames, FrameReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.inject.scrub import Needles
    from keyhole.wire.websocket import FramePiece

Hear = Callable[[bytes, bool], None]
"""Called with a part of a message, and whether it is the last."""

MAX_EMPTY = 64
"""Frames without payload that wait behind a message with a held-back end: pings and empty fragments
would otherwise fill the memory until the message continues (I9)."""


class FrameCanary:
    """Searches a client's frames for the values of a canary file, also over several frames."""

    __slots__ = ("_frames", "_scanner", "_values")

    def __init__(self, values: Sequence[bytes]) -> None:
        self._frames = ClientFrames()
        self._scanner = CanaryScanner(values)
        self._values = values

    def found_in(self, data: bytes | memoryview) -> bool:
        """Whether a value ends in these bytes of the wire. Raises Malformed."""
        text, controls = self._frames.feed(bytes(data))
        other = b"\n".join(controls)
        return self._scanner.found_in(text) or any(value in other for value in self._values)


class FrameScan:
    """The frames of one connection."""

    __slots__ = ("_begun", "_empty", "_needles", "_pending", "_reader", "_scrubber", "_unsent")

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._reader = FrameReader()
        self._scrubber = Scrubber(needles)
        self._begun = False
        """Whether the scrubber has been fed a part of the present message."""
        self._pending: deque[tuple[bytes, int]] = deque()
        """Wire bytes that wait, and how many bytes of payload each ends with."""
        self._unsent = 0
        self._empty = 0

    @property
    def between_frames(self) -> bool:
        """Whether every frame that has begun was passed on whole."""
        return not self._pending and self._reader.between_frames

    def feed(self, data: bytes, hear: Hear | None = None) -> bytes:
        """The wire bytes that may be passed on; `hear` is called with the text of messages. Raises
        Malformed, ResponseUnfit, and the errors of `hear`.

        All texts of one read are searched together: it may hold 80,000 frames, and a search for
        each of them would stop the loop for half a second (I12).
        """
        pieces = self._reader.feed(data)
        if hear is None and not self._needles:
            return data
        messages = _join(pieces)
        if hear is not None:
            for text, ends in messages:
                hear(text, ends)
        if not self._needles:
            return data
        self._search(messages, [piece.payload for piece in pieces if piece.control])
        return self._release(pieces)

    def _search(self, messages: list[tuple[bytes, bool]], texts: list[bytes]) -> None:
        """Search each message, and each of these other texts, for secrets."""
        scrubber = self._scrubber
        for text, ends in messages:
            if ends and not self._begun:
                texts.append(text)
                continue
            scrubber.feed(text)
            if ends:
                scrubber.end()
            self._begun = not ends
        found = self._needles.found_in
        # If the joined texts hold no secret, none of them does. Two texts are joined by a line end,
        # so a match across two of them may be false; each is then searched alone.
        if scrubber.hits or (found(b"\n".join(texts)) and any(map(found, texts))):
            raise ResponseUnfit(Reason.SECRET_REFLECTED)

    def _release(self, pieces: list[FramePiece]) -> bytes:
        """Let go of all but the payload that a secret could begin in.

        A control frame between the fragments of a message does not overtake what is held back.
        """
        pending, held = self._pending, self._scrubber.held
        if not pending and not held:
            return b"".join([piece.data for piece in pieces])
        for piece in pieces:
            size = 0 if piece.control else len(piece.payload)
            pending.append((piece.data, size))
            self._unsent += size
            self._empty += not size
        passed: list[bytes] = []
        while pending:
            data, size = pending[0]
            if self._unsent - size < held:
                break
            pending.popleft()
            passed.append(data)
            self._unsent -= size
            self._empty -= not size
        if self._empty > MAX_EMPTY:
            raise Malformed("too many empty frames within a message")
        free = self._unsent - held
        if pending and free:
            data, size = pending[0]
            cut = len(data) - size + free
            passed.append(data[:cut])
            pending[0] = (data[cut:], size - free)
            self._unsent -= free
        return b"".join(passed)


def _join(pieces: list[FramePiece]) -> list[tuple[bytes, bool]]:
    """The text of each message, and whether the message ends with it."""
    messages: list[tuple[bytes, bool]] = []
    parts: list[bytes] = []
    for _, payload, ends, control in pieces:
        if control:
            continue
        parts.append(payload)
        if ends:
            messages.append((b"".join(parts), True))
            parts = []
    if parts:
        messages.append((b"".join(parts), False))
    return messages
