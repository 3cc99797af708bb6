"""Carries many connections over one TLS connection, with a window for each.

Used by `carrier.py` at the door and by `relay.py` at the gateway. With a single TLS connection, a
certificate is in use once at a time, so the gateway notices a second use; and when the connection
is lost, the whole sandbox is closed (I2). A stream with a slow reader fills only its own window;
frames of other streams pass it (I12).
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
"""Bytes of a stream that may be in flight in one direction: 20 MB/s at a round trip of 12 ms."""

MAX_STREAMS = 256
"""Connections at a time: the default of `limits.connections`. Their windows take at most 64 MiB."""

MAX_QUESTIONS = 64
"""DNS questions at a time."""

BEAT_SECONDS = 5.0
SILENT_SECONDS = 20.0
"""Seconds without a byte, not even a heartbeat, after which a connection counts as lost."""

_TRUNK_BUFFER = 1 << 20
"""Bytes that wait for the connection before streams stop being read."""


class CarriedStream(asyncio.Protocol):
    """One connection on this side, and its stream. "This side" is the local connection, "the other
    side" the process at the other end of the TLS connection."""

    def __init__(self, carriage: Carriage, number: int) -> None:
        self._carriage = carriage
        self.number = number
        self.transport: asyncio.Transport | None = None
        self._may_send = WINDOW
        self._may_come = WINDOW
        self._owed = 0
        """Bytes that were written on this side, and not yet credited to the other side's window."""
        self._early = bytearray()
        self._held = bytearray()
        """Bytes of this side that the window does not allow yet; at most one read."""
        self._blocked = self._ending = self._over = self._at_end = self._sent_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The local connection is open."""
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
        """Send bytes of this side as far as the window allows, and keep the rest."""
        self._held += data
        self._send_held()
        self.regulate()

    def _send_held(self) -> None:
        while self._held and self._may_send > 0:
            piece = bytes(self._held[: min(MAX_PAYLOAD, self._may_send)])
            del self._held[: len(piece)]
            self._may_send -= len(piece)
            self._carriage.send(CarriedFrame(FrameKind.DATA, self.number, piece))
        if self._at_end and not self._held and not self._sent_end:
            self._sent_end = True
            self._carriage.send(CarriedFrame(FrameKind.END, self.number))
            if self._ending and self.transport is not None:
                self.transport.close()

    def eof_received(self) -> bool:
        """This side sends no more: tell the other side after the bytes that still wait."""
        self._at_end = True
        self._send_held()
        return not (self._ending and self._sent_end)

    def connection_lost(self, error: Exception | None) -> None:
        """The local connection has ended."""
        if not self._over:
            self._over = True
            if error is not None or not (self._sent_end and self._ending):
                self._carriage.send(CarriedFrame(FrameKind.RESET, self.number))
            self._carriage.ended(self)

    def pause_writing(self) -> None:
        """The local connection's buffer is full: give no credit until it has been read."""
        self._blocked = True

    def resume_writing(self) -> None:
        """The local connection's buffer has been read."""
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
        # Credit is sent for a quarter of the window, not for each piece.
        if self._owed >= WINDOW // 4 or (self._owed and self._may_come < WINDOW // 2):
            owed, self._owed = self._owed, 0
            self._may_come += owed
            self._carriage.send(credit_frame(self.number, owed))

    def credit(self, amount: int) -> None:
        """The other side accepts this many more bytes. Raises Malformed."""
        self._may_send += amount
        if self._may_send > WINDOW:
            raise Malformed("a stream is credited more than was sent")
        self._send_held()
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
        """End the stream: reset the local connection."""
        self._over = True
        if self.transport is not None:
            self.transport.abort()

    def regulate(self) -> None:
        """Read from the local connection only while the window and the TLS connection take more."""
        if self.transport is None or self.transport.is_closing() or self._at_end:
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
        self.over = False
        """Whether it was lost."""
        self.full = False
        """Whether so many bytes wait for the TLS connection that no stream may be read."""

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, number: object) -> bool:
        return number in self._streams

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The TLS connection is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_TRUNK_BUFFER)
        self._beat()

    def data_received(self, data: bytes) -> None:
        """Frames of the other end. A malformed one ends the connection."""
        self._last = self._loop.time()
        try:
            for frame in self._reader.feed(data):
                self._take(frame)
        except (Malformed, ValueError, RecursionError):
            self.close()

    def eof_received(self) -> bool:
        """The other end has closed the connection."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost: reset every connection on this side (I2)."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        self.over = True
        for stream in list(self._streams.values()):
            stream.abort()
        self._streams.clear()
        self._lost(self)

    def pause_writing(self) -> None:
        """Too many bytes wait: stop reading the streams."""
        self.full = True
        for stream in self._streams.values():
            stream.regulate()

    def resume_writing(self) -> None:
        """There is room again: read the streams."""
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
        """Send a frame. It is dropped if there is no connection."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame.written())

    def say(self, **message: object) -> None:
        """Send a message."""
        data = json.dumps(message).encode()
        if len(data) <= MAX_PAYLOAD:
            self.send(CarriedFrame(FrameKind.WORD, 0, data))

    def open(self, number: int) -> CarriedStream:
        """Add a stream with this number. Raises Malformed if it exists or there are too many."""
        if number in self._streams or len(self._streams) >= MAX_STREAMS:
            raise Malformed("a stream exists already, or there are too many")
        stream = self._streams[number] = CarriedStream(self, number)
        return stream

    def ended(self, stream: CarriedStream) -> None:
        """A stream has ended on this side."""
        if self._streams.get(stream.number) is stream:
            del self._streams[stream.number]

    def close(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def _beat(self) -> None:
        if self._loop.time() - self._last > SILENT_SECONDS:
            self.close()
            return
        self.send(CarriedFrame(FrameKind.BEAT))
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
