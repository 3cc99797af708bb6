"""The sending half of HTTP/2 on one connection: windows of the peer, and data that waits for them.

The first part of the machine in `http2.py`. Data beyond the peer's window is held; when the window
opens, the streams send a frame each in turn, and the caller is told when nothing waits any more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

from keyhole.http.field import MAX_HEAD
from keyhole.http.frames import (
    END_STREAM,
    MAX_FRAME,
    Code,
    Kind,
    Setting,
    data_frames,
    frame,
    goaway_frame,
    header_frames,
    reset_frame,
    settings_frame,
    window_frame,
)
from keyhole.http.hpack import EMPTY_TABLE, encode_line
from keyhole.http.http2_stream import (
    CONNECTION_WINDOW,
    DEFAULT_WINDOW,
    MADE_UP,
    MAX_FORGOTTEN,
    MAX_KNOWN_LINE,
    MAX_KNOWN_LINES,
    STREAM_WINDOW,
    Http2Stream,
)
from keyhole.http.states import OVER, State
from keyhole.model.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable

_DONE = State.DONE
_DATA = int(Kind.DATA)


class Http2Sender(ABC):
    """Sends data and heads on streams."""

    __slots__ = (
        "_forgotten", "_frame_size", "_initial_room", "_lines", "_more_room", "_out", "_room",
        "_waiting", "_waste", "_wrote", "closed", "going", "last", "streams",
    )  # fmt: skip

    def __init__(self, settings: dict[Setting, int]) -> None:
        self.streams: dict[int, Http2Stream] = {}
        self.last = 0
        """The highest stream that was begun."""
        self.going = False
        """Whether we have said goodbye: no stream may begin any more."""
        self.closed = False
        self._lines: dict[bytes, bytes] = {}
        self._room = DEFAULT_WINDOW
        self._initial_room = DEFAULT_WINDOW
        self._more_room = False
        """Whether the peer has given room, and `_drain` has not yet shared all of it."""
        self._frame_size = MAX_FRAME
        self._wrote = False
        self._waste = 0
        """Frames of the peer's that carried nothing, less the calls that sent something."""
        self._forgotten: dict[int, None] = {}
        self._waiting: dict[int, None] = {}
        """Streams with data that the peer has given no room for, the longest waiting first."""
        self._out: list[bytes | memoryview] = [
            settings_frame(
                {
                    **settings,
                    Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_HEAD,
                }
            ),
            window_frame(0, CONNECTION_WINDOW - DEFAULT_WINDOW),
        ]

    # ── for the caller ────────────────────────────────────────────────────────────────────────────

    def take(self) -> bytes:
        """Bytes for the peer."""
        out = self._out
        if not out:
            return b""
        data = bytes(out[0]) if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def is_slow(self, number: int) -> bool:
        """Whether the peer has given no room for data of this stream."""
        return number in self._waiting

    @property
    def unsent(self) -> int:
        """Bytes that the peer has given no room for."""
        return sum(sum(map(len, self.streams[number].pending or ())) for number in self._waiting)

    def reset(self, number: int, code: Code = Code.CANCEL) -> bytes:
        """End a stream now."""
        stream = self.streams.get(number)
        if stream is not None:
            self._reset(stream, code)
        return self.take()

    def leave(self) -> bytes:
        """Say goodbye: streams that are open may end."""
        if not self.going and not self.closed:
            self.going = True
            self._out.append(goaway_frame(self._last_served, Code.NO_ERROR))
        return self.take()

    def send_data(self, number: int, data: bytes | memoryview) -> bytes:
        """Bytes of our body: what the peer has room for. The rest follows when it has."""
        stream = self._find(number)
        size = len(data)
        if not size or stream.outgoing is _DONE:
            return self.take()  # an origin may have said that it needs no more
        if stream.ending or -1 < stream.to_send < size:
            raise Misuse("the body is over")
        if self._waste:
            self._waste -= min(self._waste, MADE_UP)
        if stream.to_send > 0:
            stream.to_send -= size
            if not stream.to_send:
                stream.ending = True
        if stream.pending is None and size <= stream.room and size <= self._room:
            stream.room -= size
            stream.sent += size
            self._room -= size
            self._out += data_frames(number, data, self._frame_size, ended=stream.ending)
            if stream.ending:
                self._end_outgoing(stream)
        elif stream.pending is None:
            stream.pending = deque([bytes(data)])
            self._waiting[number] = None
            if not self._more_room:
                self._drain()
        else:
            stream.pending.append(bytes(data))
        return self.take()

    @property
    def _last_served(self) -> int:
        """The highest stream of the peer's that was begun."""
        return self.last

    # ── our messages ──────────────────────────────────────────────────────────────────────────────

    def _open(self, number: int) -> Http2Stream:
        stream = self.streams[number] = Http2Stream(number, self._initial_room)
        self.last = number
        return stream

    def _find(self, number: int) -> Http2Stream:
        stream = self.streams.get(number)
        if stream is None:
            raise Misuse(OVER)
        return stream

    def _send_section(
        self, number: int, pseudo: bytes, lines: Iterable[bytes], *, ended: bool
    ) -> None:
        first = b"" if self._wrote else EMPTY_TABLE
        self._wrote = True
        if self._waste:
            self._waste -= 1
        section = first + pseudo + self._encode_lines(lines)
        self._out.append(header_frames(number, section, self._frame_size, ended=ended))

    def _encode_lines(self, lines: Iterable[bytes]) -> bytes:
        known = self._lines.get
        return b"".join([known(line) or self._encode(line) for line in lines])

    def _encode(self, line: bytes) -> bytes:
        encoded = encode_line(line)
        known = self._lines
        if len(line) <= MAX_KNOWN_LINE:
            if len(known) >= MAX_KNOWN_LINES:
                known.clear()
            known[line] = encoded
        return encoded

    def _end(self, stream: Http2Stream, trailers: Iterable[bytes] = ()) -> None:
        """Our message is whole, once what waits was sent."""
        if stream.ending:
            return  # its last data, or its head, has said so
        stream.ending = True
        section = self._encode_lines(trailers)
        if stream.pending is not None:
            stream.trailers = section
            return
        self._send_end(stream, section)

    def _send_end(self, stream: Http2Stream, trailers: bytes) -> None:
        number = stream.number
        if trailers:
            self._out.append(header_frames(number, trailers, self._frame_size, ended=True))
        else:
            self._out.append(frame(_DATA, END_STREAM, number))
        self._end_outgoing(stream)

    def _drain(self) -> None:
        """Send what there is room for, a frame of each stream in turn."""
        waiting = self._waiting
        self._more_room = progress = True
        while progress and self._room > 0:
            progress = False
            for number in list(waiting):
                # A stream that catches up may have others reset.
                stream = self.streams.get(number)
                if stream is None or stream.pending is None:
                    continue
                if stream.room > 0 and self._room > 0:
                    self._drain_stream(stream, stream.pending)
                    progress = True
        self._more_room = False

    def _drain_stream(self, stream: Http2Stream, pending: deque[bytes | memoryview]) -> None:
        """Send one frame of a stream that waits."""
        number = stream.number
        most = min(stream.room, self._room, self._frame_size)
        data = pending.popleft()
        if len(data) > most:
            # Attack: a window of one byte, for which the rest would be copied each time.
            data = memoryview(data)
            pending.appendleft(data[most:])
            data = data[:most]
        size = len(data)
        stream.room -= size
        stream.sent += size
        self._room -= size
        last = not pending
        ended = last and stream.ending and not stream.trailers
        self._out += data_frames(number, data, self._frame_size, ended=ended)
        del self._waiting[number]
        if not last:
            self._waiting[number] = None  # behind those that have had nothing yet
            return
        stream.pending = None
        if ended:
            self._end_outgoing(stream)
        elif stream.ending:
            self._send_end(stream, stream.trailers)
        self._caught_up(number)

    def _end_outgoing(self, stream: Http2Stream) -> None:
        stream.outgoing = _DONE
        stream.ending = True
        if stream.incoming is _DONE:
            self._forget(stream)

    # ── the end of a stream ───────────────────────────────────────────────────────────────────────

    def _forget(self, stream: Http2Stream) -> None:
        """Release a stream and its held data."""
        self.streams.pop(stream.number, None)
        self._waiting.pop(stream.number, None)
        stream.pending = None
        stream.receiver = None

    def _reset(self, stream: Http2Stream, code: Code) -> None:
        self._out.append(reset_frame(stream.number, code))
        self._remember_reset(stream.number)
        self._forget(stream)

    def _remember_reset(self, number: int) -> None:
        forgotten = self._forgotten
        if len(forgotten) >= MAX_FORGOTTEN:
            del forgotten[next(iter(forgotten))]
        forgotten[number] = None

    # ── for the machine of one side ───────────────────────────────────────────────────────────────

    @abstractmethod
    def _caught_up(self, number: int) -> None:
        """All data of a stream was sent that had waited for the peer's window."""
