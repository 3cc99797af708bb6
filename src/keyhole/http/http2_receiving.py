"""The receiving half of HTTP/2 on one connection: data within its windows, and field sections.

The second part of the machine in `http2.py`. Held data of a paused stream is bounded by the window
that the stream was granted; useless frames of a peer are counted (`MAX_WASTE`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from keyhole.http.crossing import CheckedFields
from keyhole.http.field import MAX_HEAD
from keyhole.http.frames import (
    END_HEADERS,
    END_STREAM,
    HEADER,
    MAX_NUMBER,
    PADDED,
    WITH_PRIORITY,
    Code,
    ConnectionFault,
    Setting,
    StreamFault,
    reset_frame,
    unpadded,
    window_frame,
)
from keyhole.http.hpack import FieldDecoder
from keyhole.http.http2_sending import Http2Sender
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    HELD_PIECE,
    MAX_SECTION_FRAMES,
    MAX_WASTE,
    Http2Stream,
    SpareWindow,
)
from keyhole.http.states import State
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.http.field import Field
    from keyhole.http.hpack import FieldSection

_BODY = State.BODY

PRIORITY_BYTES = 5
"""Bytes of a priority, which no implementation uses any more (RFC 9113 §5.3)."""


class Http2Receiver(Http2Sender):
    """Receives data and field sections of the peer."""

    __slots__ = (
        "_checked", "_count_held", "_decoder", "_section", "_section_flags", "_section_frames",
        "_section_stream", "_spare", "_uncredited", "_window",
    )  # fmt: skip

    def __init__(self, settings: dict[Setting, int]) -> None:
        super().__init__(settings)
        self._decoder = FieldDecoder()
        self._checked = CheckedFields()
        self._section: list[bytes] | None = None
        self._section_stream = self._section_flags = self._section_frames = 0
        self._window = CONNECTION_WINDOW
        self._uncredited = 0
        self._spare = SpareWindow()
        self._count_held = 0

    # ── for the caller ────────────────────────────────────────────────────────────────────────────

    def pause(self, number: int) -> None:
        """Hold the data of a stream that arrives; its window is not opened meanwhile."""
        stream = self.streams.get(number)
        if stream is not None:
            stream.paused = True

    def resume(self, number: int) -> None:
        """Pass on the held data of a stream, and the data that follows."""
        stream = self.streams.get(number)
        if stream is None:
            return
        stream.paused = False
        while stream.held_size and not stream.paused:
            data, size = stream.held or bytearray(), stream.held_size
            if len(data) > HELD_PIECE:
                held, size = data, HELD_PIECE
                data = held[:size]
                del held[:size]
            else:
                stream.held = None
            stream.held_size -= size
            self._count_held -= size
            self._pass_on(stream, memoryview(data), size)
            if self.streams.get(number) is not stream:
                return
        if stream.held_end is not None and not stream.held_size and not stream.paused:
            trailers, stream.held_end = stream.held_end, None
            self._end_incoming(stream, trailers)

    def unpause(self, number: int) -> None:
        """Hold no further data; `resume` passes on what is held."""
        stream = self.streams.get(number)
        if stream is not None:
            stream.paused = False

    def is_paused(self, number: int) -> bool:
        """Whether the data of a stream is held."""
        stream = self.streams.get(number)
        return stream is not None and stream.paused

    def is_whole(self, number: int) -> bool:
        """Whether the peer's message is here to its end, and only waits to be passed on."""
        stream = self.streams.get(number)
        return stream is not None and stream.held_end is not None

    def may_have_trailers(self, number: int) -> bool:
        """Whether something may still come behind the data that is here: more of it, or fields."""
        stream = self.streams.get(number)
        return stream is not None and stream.incoming is _BODY and stream.held_end is None

    def wire_size(self, number: int) -> int:
        """Bytes that the peer's body has had so far, its framing included."""
        stream = self.streams.get(number)
        return stream.wire_size if stream is not None else 0

    def moved(self, number: int) -> int:
        """Bytes of a stream that went either way."""
        stream = self.streams.get(number)
        return stream.wire_size + stream.sent if stream is not None else 0

    def waits_for_data(self, number: int) -> bool:
        """Whether the peer's message is not whole, and nothing of it is held here."""
        stream = self.streams.get(number)
        return (
            stream is not None
            and stream.incoming is _BODY
            and stream.held_end is None
            and not stream.paused
        )

    def refill(self) -> None:
        """Forgive the waste of the time that has passed."""
        self._waste = 0

    # ── data ──────────────────────────────────────────────────────────────────────────────────────

    def _take_data(self, flags: int, number: int, payload: memoryview) -> None:
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "data goes beyond the window")
        stream = self.streams.get(number)
        if stream is None:
            self._credit(size)
            if not size:
                self._count_waste()
            self._take_unexpected(number)
            return
        stream.window -= size
        ended = bool(flags & END_STREAM)
        try:
            if stream.incoming is not _BODY or stream.held_end is not None:
                raise StreamFault(Code.STREAM_CLOSED, "data comes where none may")
            if stream.window < 0:
                raise StreamFault(Code.FLOW_CONTROL_ERROR, "data goes beyond the window")
            data = unpadded(payload, flags) if flags & PADDED else payload
            if stream.left >= 0:
                stream.left -= len(data)
                if stream.left < 0 or (ended and stream.left and not stream.answered):
                    raise StreamFault(Code.PROTOCOL_ERROR, "Content-Length is not what comes")
            if not data and not ended:
                self._count_waste()
        except StreamFault:
            self._credit(size)
            raise
        stream.wire_size += size + HEADER.size
        if stream.paused or stream.held_size:
            if stream.held is None:
                stream.held = bytearray()
            stream.held += data
            stream.held_size += size
            self._count_held += size
            self._credit(size)
            if ended:
                stream.held_end = ()
            return
        self._credit(size)
        if ended:
            self._take_last_data(stream, data)
        else:
            self._pass_on(stream, data, size)

    def _take_last_data(self, stream: Http2Stream, data: memoryview) -> None:
        """The last bytes of a message, which is known to end with them."""
        stream.held_end = ()
        if data:
            self._deliver(stream, data)
        if not stream.paused:
            self.resume(stream.number)

    def _pass_on(self, stream: Http2Stream, data: bytes | memoryview, size: int) -> None:
        if data:
            self._deliver(stream, data)
            if self.streams.get(stream.number) is not stream:
                return
        stream.uncredited += size
        if (
            stream.uncredited >= stream.span // 2
            and stream.incoming is _BODY
            and stream.held_end is None
        ):
            amount, stream.uncredited = stream.uncredited, 0
            if not stream.held_size:
                amount += self._spare.widen(stream)
            stream.window += amount
            self._out.append(window_frame(stream.number, amount))

    def _credit(self, size: int) -> None:
        """Open the connection's window again. Held data is bounded by the window of its stream. If
        the connection's window stayed closed, slow streams would hold up the others (I12)."""
        self._uncredited += size
        if self._uncredited >= CONNECTION_WINDOW // 2:
            self._window += self._uncredited
            self._out.append(window_frame(0, self._uncredited))
            self._uncredited = 0

    def _take_unexpected(self, number: int) -> None:
        """A frame of a stream that is not open."""
        if self._is_idle(number):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame is of a stream that has not begun")
        if number not in self._forgotten:
            self._count_waste()
            self._out.append(reset_frame(number, Code.STREAM_CLOSED))

    def _is_idle(self, number: int) -> bool:
        return number == 0 or number > self.last or number % 2 == 0

    def _count_waste(self, amount: int = 1) -> None:
        self._waste += amount
        if self._waste > MAX_WASTE:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    def _forget(self, stream: Http2Stream) -> None:
        super()._forget(stream)
        self._spare.take_back(stream)
        if stream.held_size:
            self._count_held -= stream.held_size
            stream.held_size = 0
        stream.held = None

    # ── field sections ────────────────────────────────────────────────────────────────────────────

    def _take_headers(self, flags: int, number: int, payload: memoryview) -> None:
        if not number:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a field section is of no stream")
        if flags & PADDED:
            payload = unpadded(payload, flags)
        fault = None
        if flags & WITH_PRIORITY:
            if len(payload) < PRIORITY_BYTES:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a priority is cut off")
            try:
                self._check_dependency(number, payload)
            except StreamFault as found:
                fault = found
            payload = payload[PRIORITY_BYTES:]
        if flags & END_HEADERS:
            self._take_section(number, bytes(payload), ended=bool(flags & END_STREAM), fault=fault)
        else:
            self._section, self._section_stream = [bytes(payload)], number
            self._section_flags, self._section_frames = flags, 1

    def _check_dependency(self, number: int, payload: memoryview) -> None:
        if not number:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a priority is of no stream")
        if int.from_bytes(payload[:4], "big") & MAX_NUMBER == number:
            raise StreamFault(Code.PROTOCOL_ERROR, "a stream depends on itself")

    def _take_continuation(self, flags: int, number: int, payload: memoryview) -> None:
        section = self._section
        if section is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a field section goes on that has not begun")
        section.append(bytes(payload))
        self._section_frames += 1
        if self._section_frames > MAX_SECTION_FRAMES or sum(map(len, section)) > MAX_HEAD:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "a field section is too long")
        if flags & END_HEADERS:
            self._section = None
            ended = bool(self._section_flags & END_STREAM)
            self._take_section(number, b"".join(section), ended=ended, fault=None)

    def _take_section(
        self, number: int, section: bytes, *, ended: bool, fault: StreamFault | None
    ) -> None:
        # Each section is decoded, whatever becomes of it: the table depends on all of them.
        try:
            fields = self._decoder.decode(section)
        except Malformed as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, error.why) from None
        if fault is not None:
            self._note_begun(number)
            raise fault
        self._take_fields(number, fields, ended=ended)

    def _note_begun(self, number: int) -> None:
        """A stream of this number is not idle any more."""
        self.last = max(self.last, number)

    # ── for the machine of one side ───────────────────────────────────────────────────────────────

    @abstractmethod
    def _take_fields(self, number: int, fields: FieldSection, *, ended: bool) -> None:
        """Read a whole field section: a head, or trailers."""

    @abstractmethod
    def _deliver(self, stream: Http2Stream, data: bytes | memoryview) -> None:
        """Hand data of the peer's message to the stream's receiver."""

    @abstractmethod
    def _end_incoming(self, stream: Http2Stream, trailers: Sequence[Field]) -> None:
        """Tell the stream's receiver that the peer's message is whole."""
