"""Carries many connections over one, with a window for each: the same at a remote door and at its
gateway.

Used by `carrier.py` at the door and by `relay.py` at the gateway. One TLS connection carries all: a
certificate then has one use at a time, so that a second one shows, and its loss is one fact that
closes the sandbox (I2). A connection whose reader is slow uses up its own window and nothing else
(I12): frames of others pass it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from keyhole.model.errors import Malformed
from keyhole.wire.carried_frames import (
    MAX_PAYLOAD,
    CarriedFrame,
    CarriedFrameReader,
    FrameKind,
    credit_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW = 256 * 1024
"""Bytes of a stream that may be under way in one direction: 20 MB/s at 12 ms."""

MAX_STREAMS = 256
"""Connections at a time: as many as `limits.connections` lets a session have unless it says
otherwise, and 64 MiB at the very most."""

MAX_QUESTIONS = 64
"""DNS questions at a time."""

BEAT_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""How long a connection may carry nothing, not even a beat: then it is lost."""

_TRUNK_BUFFER = 1 << 20
"""Bytes that wait for the connection before streams stop being read."""


class CarriedStream(asyncio.Protocol):
    """One connection on this side, and its stream."""

    def __init__(self, carriage: Carriage, number: int) -> None:
        self._carriage = carriage
        self.number = number
        self.transport: asyncio.Transport | None = None
        self._may_send = WINDOW
        self._may_come = WINDOW
        self._owed = 0
        """Bytes that were written here and not credited yet."""
        self._early = bytearray()
        self._blocked = self._ending = self._over = self._sent_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection on this side is there."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=MAX_PAYLOAD)
        early, self._early = bytes(self._early), bytearray()
        if self._over:
            self.transport.abort()
            return
        self._write(early)
        if self._ending:
            self.end()
        self.regulate()

    def data_received(self, data: bytes) -> None:
        """Bytes of this side, which fit the window but for what was read at once."""
        for at in range(0, len(data), MAX_PAYLOAD):
            piece = data[at : at + MAX_PAYLOAD]
            self._may_send -= len(piece)
            self._carriage.send(CarriedFrame(FrameKind.DATA, self.number, piece))
        self.regulate()

    def eof_received(self) -> bool:
        """This side sends no more."""
        self._sent_end = True
        self._carriage.send(CarriedFrame(FrameKind.END, self.number))
        return not self._ending

    def connection_lost(self, error: Exception | None) -> None:
        """This side is over."""
        if not self._over:
            self._over = True
            if error is not None or not (self._sent_end and self._ending):
                self._carriage.send(CarriedFrame(FrameKind.RESET, self.number))
            self._carriage.ended(self)

    def pause_writing(self) -> None:
        """This side reads slowly: no credit until it has read."""
        self._blocked = True

    def resume_writing(self) -> None:
        """This side has read."""
        self._blocked = False
        self._pay()

    # ── from the other side ───────────────────────────────────────────────────────────────────────

    def receive(self, data: bytes) -> None:
        """Bytes of the other side. Raises Malformed beyond the window."""
        self._may_come -= len(data)
        if self._may_come < 0 or self._ending:
            raise Malformed("a stream is beyond its window, or has ended")
        if self.transport is None:
            self._early += data
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self._owed += len(data)
            self.transport.write(data)
            if not self._blocked:
                self._pay()

    def _pay(self) -> None:
        # Not for each piece: a quarter of the window may wait.
        if self._owed >= WINDOW // 4 or (self._owed and self._may_come < WINDOW // 2):
            owed, self._owed = self._owed, 0
            self._may_come += owed
            self._carriage.send(credit_frame(self.number, owed))

    def credit(self, amount: int) -> None:
        """The other side takes so many bytes more. Raises Malformed."""
        self._may_send += amount
        if self._may_send > WINDOW:
            raise Malformed("a stream is credited more than was sent")
        self.regulate()

    def end(self) -> None:
        """The other side sends no more."""
        self._ending = True
        if self.transport is not None and not self.transport.is_closing():
            if self.transport.can_write_eof():
                self.transport.write_eof()
            if self._sent_end:
                self.transport.close()

    def abort(self) -> None:
        """The stream is over: the connection on this side is reset."""
        self._over = True
        if self.transport is not None:
            self.transport.abort()

    def regulate(self) -> None:
        """Read while the other side, and the connection between, take more."""
        if self.transport is None or self.transport.is_closing() or self._sent_end:
            return
        if self._may_send > 0 and not self._carriage.full:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()


class Carriage(asyncio.Protocol):
    """The connection between a remote door and its gateway, at one of its ends."""

    def __init__(
        self,
        heard: Callable[[Carriage, CarriedFrame], None],
        word: Callable[[dict[str, Any]], None],
        lost: Callable[[Carriage], None],
    ) -> None:
        """`heard` is called with an OPEN, QUESTION or ANSWER, `word` with a message, and `lost` at
        the end."""
        self._heard, self._word, self._lost = heard, word, lost
        self._reader = CarriedFrameReader()
        self._streams: dict[int, CarriedStream] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last = self._loop.time()
        self.full = False
        """Whether so much waits for the connection that no stream is read."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, number: object) -> bool:
        return number in self._streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_TRUNK_BUFFER)
        self._beat()

    def data_received(self, data: bytes) -> None:
        """Frames of the other end; any that breaks a rule ends it."""
        self._last = self._loop.time()
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (Malformed, ValueError, RecursionError):
            self.close()

    def eof_received(self) -> bool:
        """The other end has closed it."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is lost: every connection on this side is reset (I2)."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        for stream in list(self._streams.values()):
            stream.abort()
        self._streams.clear()
        self._lost(self)

    def pause_writing(self) -> None:
        """Too much waits."""
        self.full = True
        for stream in self._streams.values():
            stream.regulate()

    def resume_writing(self) -> None:
        """There is room again."""
        self.full = False
        for stream in list(self._streams.values()):
            stream.regulate()

    def _take(self, frame: CarriedFrame) -> None:
        match frame.kind:
            case FrameKind.OPEN | FrameKind.QUESTION | FrameKind.ANSWER:
                self._heard(self, frame)
            case FrameKind.WORD:
                message = json.loads(frame.payload)
                if not isinstance(message, dict):
                    raise Malformed("a message is no object")
                self._word(message)
            case FrameKind.BEAT:
                pass
            case _:
                self._pass_on(frame)

    def _pass_on(self, frame: CarriedFrame) -> None:
        stream = self._streams.get(frame.number)
        if stream is None:
            return  # it ended here while this was under way
        match frame.kind:
            case FrameKind.DATA:
                stream.receive(frame.payload)
            case FrameKind.CREDIT:
                stream.credit(frame.credit)
            case FrameKind.END:
                stream.end()
            case _:
                del self._streams[frame.number]
                stream.abort()

    def send(self, frame: CarriedFrame) -> None:
        """Send a frame; without a connection it is dropped."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame.written())

    def say(self, **message: object) -> None:
        """Send a message."""
        data = json.dumps(message).encode()
        if len(data) <= MAX_PAYLOAD:
            self.send(CarriedFrame(FrameKind.WORD, 0, data))

    def open(self, number: int) -> CarriedStream:
        """A stream of this number. Raises Malformed if it exists or there are too many."""
        if number in self._streams or len(self._streams) >= MAX_STREAMS:
            raise Malformed("a stream exists already, or there are too many")
        stream = self._streams[number] = CarriedStream(self, number)
        return stream

    def ended(self, stream: CarriedStream) -> None:
        """A stream is over on this side."""
        if self._streams.get(stream.number) is stream:
            del self._streams[stream.number]

    def close(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()

    def _beat(self) -> None:
        if self._loop.time() - self._last > SILENT_SECONDS:
            self.close()
            return
        self.send(CarriedFrame(FrameKind.BEAT))
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
