"""HTTP/2 on one connection, as both sides have it: frames in, calls and frames out (RFC 9113).

Its halves are `http2_sending.py` and `http2_receiving.py`; frames are told apart here. The machines
of the two sides, `http2_server.py` and `http2_client.py`, add what requests and responses are. No
socket, no clock. Fed with the bytes of the peer; bytes for the peer are returned by the calls that
send, and by `take` after bytes were received.

The peer is hostile. A rule that it breaks ends a stream or the connection with the code of the
protocol. What costs us more than the peer is counted (`MAX_WASTE`), and what we hold for it is
bounded by the windows that we grant.
"""

from __future__ import annotations

import struct
from abc import abstractmethod

from keyhole.http.frames import (
    ACK,
    END_STREAM,
    HEADER,
    MAX_FRAME,
    MAX_NUMBER,
    Code,
    ConnectionFault,
    Kind,
    Setting,
    StreamFault,
    frame,
    goaway_frame,
    reset_frame,
)
from keyhole.http.http2_receiving import PRIORITY_BYTES, Http2Receiver
from keyhole.http.http2_stream import (
    BYTES_OF_WORK,
    MAX_SETTINGS,
    MAX_STREAMS,
    SMALL_UPDATE,
    WASTE_OF_A_RESET,
    WORK_AT_ONCE,
    WORK_OF_A_HEAD,
)
from keyhole.http.states import State

_BODY, _DONE = State.BODY, State.DONE
_SETTING_BYTES = 6
_HEADER_SIZE = HEADER.size

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = map(
    int, Kind
)


_NOTHING = memoryview(b"")


class Http2Machine(Http2Receiver):
    """The part of the machine that both sides share."""

    __slots__ = ("_held", "_settled", "behind", "peer_going", "peer_streams", "reads")

    def __init__(self, settings: dict[Setting, int]) -> None:
        super().__init__(settings)
        self.peer_going = False
        """Whether the peer has said goodbye."""
        self.behind = False
        """Whether whole frames are held that only wait for the caller's next turn."""
        self.peer_streams = MAX_STREAMS
        """Streams that the peer lets us have open."""
        self.reads = 0
        """Reads that have brought the end of a frame, or of a field section."""
        self._held = b""
        self._settled = False

    # ── for the caller ────────────────────────────────────────────────────────────────────────────

    def receive(self, data: memoryview) -> None:
        """Take bytes of the peer. Raises ConnectionFault, after which `fail` says goodbye."""
        if self.closed:
            return
        held, self._held = self._held, b""
        if held:
            # Only the frame that was cut is put together: the read may have many more behind it.
            most = len(data) if self.behind else _missing(held, data)
            self._advance(memoryview(held + data[:most]), data[most:])
        else:
            self._advance(data)

    def read_on(self) -> None:
        """Go on with frames that came together with many others. Raises ConnectionFault."""
        held, self._held, self.behind = self._held, b"", False
        if held:
            self._advance(memoryview(held))

    @property
    def mid_section(self) -> bool:
        """Whether a frame, or a field section, has begun and not ended."""
        return bool(self._held) or self._section is not None

    def fail(self, fault: ConnectionFault) -> bytes:
        """Say goodbye to a peer that broke a rule."""
        self._out.append(goaway_frame(self._last_served, fault.error))
        self.close()
        return self.take()

    def close(self) -> None:
        """Read nothing more, and release everything."""
        self.closed = self.going = True
        self.behind = False
        for stream in self.streams.values():
            self._spare.take_back(stream)
            stream.held_size = 0
        self._count_held = 0
        self.streams.clear()
        self._waiting.clear()
        self._held = b""
        self._section = None

    # ── frames of the peer ────────────────────────────────────────────────────────────────────────

    def _advance(self, view: memoryview, rest: memoryview = _NOTHING) -> None:
        """Read frames, and those of the `rest` behind them; the first may end where that begins."""
        at, end, work = 0, len(view), WORK_AT_ONCE
        if not self._settled and end >= HEADER.size:
            self._check_first(view[3], view[4])
        while end - at >= HEADER.size:
            high, low, kind, flags, number = HEADER.unpack_from(view, at)
            size = high << 8 | low
            if size > MAX_FRAME:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "a frame is too long")
            stop = at + HEADER.size + size
            if stop > end:
                break
            if work <= 0:
                self.behind = True
                break
            payload = view[at + HEADER.size : stop]
            at = stop
            if at == end and rest:
                view, at, end, rest = rest, 0, len(rest), _NOTHING
            if kind == _DATA and not flags and end - at > HEADER.size and size:
                payload, flags, at, joined = self._join_data(payload, view, at, number, work)
                work -= joined
            work -= self._take_frame(kind, flags, number & MAX_NUMBER, payload)
            if self.closed:
                return
        self._after_frames()
        if work < WORK_AT_ONCE and self._section is None:
            self.reads += 1
        if at < end and not self.closed:
            self._held = bytes(view[at:])

    def _join_data(
        self, first: memoryview, view: memoryview, at: int, number: int, most: int
    ) -> tuple[memoryview, int, int, int]:
        """Data with that of the frames behind it which go on with the same stream: one piece costs
        everything behind this less than many. Also the flags of the last frame, its end, and how
        many were joined."""
        stream = self.streams.get(number)
        if stream is None or stream.incoming is not _BODY:
            return first, 0, at, 0
        # The busiest loop of a bulk transfer: nginx sends frames of 8 KiB.
        pieces, flags, end = [first], 0, len(view)
        add, unpack = pieces.append, HEADER.unpack_from
        for _ in range(1, most):
            start = at + _HEADER_SIZE
            if flags or start >= end:
                break
            high, low, kind, further, of = unpack(view, at)
            stop = start + (high << 8 | low)
            if kind or of != number or further > END_STREAM:
                break
            if not start < stop <= end or stop > start + MAX_FRAME:
                break
            add(view[start:stop])
            flags, at = further, stop
        joined = len(pieces) - 1
        if not joined:
            return first, 0, at, 0
        stream.wire_size += joined * HEADER.size
        return memoryview(b"".join(pieces)), flags, at, joined

    def _check_first(self, kind: int, flags: int) -> None:
        """RFC 9113 §3.4: a peer begins with its settings."""
        if kind != _SETTINGS or flags & ACK:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a peer does not begin with its settings")
        self._settled = True

    def _after_frames(self) -> None:
        """All frames of one read were read: send the data that waits, once for all windows that
        were opened."""
        # Attack: a thousand window updates, each of which makes us look at all streams that wait.
        if self._more_room:
            self._drain()

    def _take_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> int:
        """Read a frame. Returns how much work it was."""
        if self._section is not None and (kind != _CONTINUATION or number != self._section_stream):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a field section is interrupted")
        work = 1
        try:
            if kind == _DATA:
                self._take_data(flags, number, payload)
            elif kind == _HEADERS:
                work = WORK_OF_A_HEAD + len(payload) // BYTES_OF_WORK
                self._take_headers(flags, number, payload)
            elif kind == _CONTINUATION:
                work = WORK_OF_A_HEAD + len(payload) // BYTES_OF_WORK
                self._take_continuation(flags, number, payload)
            elif kind == _WINDOW:
                self._take_window(number, payload)
            else:
                if kind in (_SETTINGS, _GOAWAY):
                    work = 1 + len(payload) // _SETTING_BYTES + len(self.streams)
                self._take_control(kind, flags, number, payload)
        except StreamFault as fault:
            self._fail_stream(number, fault)
        return work

    def _take_control(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        size = len(payload)
        if kind == _RESET:
            if size != 4:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
            self._take_reset(number, int.from_bytes(payload, "big"))
        elif kind == _SETTINGS:
            self._take_settings(flags, number, payload)
        elif kind == _PING:
            if size != 8:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING has 8 bytes")
            self._only_connection(number)
            self._count_waste()
            if not flags & ACK:
                self._out.append(frame(_PING, ACK, 0, payload))
        elif kind == _GOAWAY:
            self._only_connection(number)
            if size < 8:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY has at least 8 bytes")
            self._count_waste()
            self.peer_going = True
            self._peer_leaves(int.from_bytes(payload[:4], "big") & MAX_NUMBER)
        elif kind == _PRIORITY:
            if size != PRIORITY_BYTES:
                raise StreamFault(Code.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
            self._count_waste()
            self._check_dependency(number, payload)
        elif kind == _PUSH:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "pushes are not accepted")
        else:
            self._count_waste()  # RFC 9113 §5.5: unknown kinds are ignored

    def _only_connection(self, number: int) -> None:
        if number:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame of the connection names a stream")

    def _fail_stream(self, number: int, fault: StreamFault) -> None:
        """The peer broke a rule of a stream."""
        self._count_waste(WASTE_OF_A_RESET)
        stream = self.streams.get(number)
        if stream is None:
            if self._is_idle(number):
                raise ConnectionFault(fault.error, fault.why)  # there is nothing to reset
            self._out.append(reset_frame(number, fault.error))
            self._remember_reset(number)
            return
        receiver = stream.receiver
        self._reset(stream, fault.error)
        self._lose(number, receiver, fault.why)

    def _take_reset(self, number: int, code: int) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._count_waste()
            if self._is_idle(number):
                self._take_unexpected(number)
            return
        receiver = stream.receiver
        if stream.outgoing is not _DONE:
            self._count_waste(WASTE_OF_A_RESET)
        self._forget(stream)
        self._lose(number, receiver, "", unread=code == Code.REFUSED_STREAM)

    # ── settings and windows ──────────────────────────────────────────────────────────────────────

    def _take_settings(self, flags: int, number: int, payload: memoryview) -> None:
        self._only_connection(number)
        size = len(payload)
        if (flags & ACK and size) or size % _SETTING_BYTES:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS have a wrong length")
        self._count_waste(max(1, size // _SETTING_BYTES))
        if flags & ACK:
            return
        if size > MAX_SETTINGS * _SETTING_BYTES:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many settings at once")
        before = self._initial_room
        for name, value in struct.iter_unpack(">HL", payload):
            self._take_setting(name, value)
        if self._initial_room != before:
            self._change_rooms(self._initial_room - before)
        self._out.append(frame(_SETTINGS, ACK, 0))

    def _take_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_NUMBER:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window is too large")
            self._initial_room = value
        elif name == Setting.MAX_FRAME_SIZE:
            if not MAX_FRAME <= value < 2**24:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of bounds")
            # Larger frames would delay what is more urgent.
            self._frame_size = MAX_FRAME
        elif name == Setting.MAX_CONCURRENT_STREAMS:
            self.peer_streams = min(value, MAX_STREAMS)
        elif name in (Setting.ENABLE_PUSH, Setting.ENABLE_CONNECT_PROTOCOL) and value > 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a setting is neither 0 nor 1")

    def _change_rooms(self, change: int) -> None:
        """RFC 9113 §6.9.2: another initial window changes those of all streams."""
        for stream in self.streams.values():
            stream.room += change
            if stream.room > MAX_NUMBER:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window is too large")
        self._more_room = True

    def _take_window(self, number: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        amount = int.from_bytes(payload, "big") & MAX_NUMBER
        if amount < SMALL_UPDATE:
            self._count_waste()
        if not number:
            if not amount:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a window is opened by nothing")
            self._room += amount
            if self._room > MAX_NUMBER:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window is too large")
        else:
            stream = self.streams.get(number)
            if stream is None:
                if self._is_idle(number):
                    self._take_unexpected(number)
                return
            if not amount:
                raise StreamFault(Code.PROTOCOL_ERROR, "a window is opened by nothing")
            stream.room += amount
            if stream.room > MAX_NUMBER:
                raise StreamFault(Code.FLOW_CONTROL_ERROR, "a window is too large")
        self._more_room = True

    # ── for the machine of one side ───────────────────────────────────────────────────────────────

    @abstractmethod
    def _lose(self, number: int, receiver: object, why: str, *, unread: bool = False) -> None:
        """A stream is gone; without `why` the peer has reset it, maybe `unread`."""

    @abstractmethod
    def _peer_leaves(self, last: int) -> None:
        """The peer has said goodbye; it serves no stream of ours after this one."""


def _missing(held: bytes, data: memoryview) -> int:
    """Bytes of `data` that belong to the frame which begins with `held`."""
    begun = held + data[: HEADER.size] if len(held) < HEADER.size else held
    if len(begun) < HEADER.size:
        return len(data)
    return HEADER.size + int.from_bytes(begun[:3], "big") - len(held)
