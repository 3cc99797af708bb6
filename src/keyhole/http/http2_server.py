"""HTTP/2 on the server side: reads requests and writes responses. No socket, no clock.

Has the sending calls of `server.py`, with many streams at once, so that the gateway's streams do
not depend on the version. Requests come to the handler; bytes for the client are returned, and by
`take` after bytes were received.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Protocol, cast

from keyhole.http.body import may_follow_body
from keyhole.http.crossing import request_head, trailer_fields
from keyhole.http.frames import (
    PREFACE,
    Code,
    ConnectionFault,
    Setting,
    StreamFault,
    reset_frame,
)
from keyhole.http.hpack import encode_field, encode_length
from keyhole.http.http2 import Http2Machine
from keyhole.http.http2_stream import (
    MAX_KNOWN_HEAD,
    MAX_STREAMS,
    STREAM_WINDOW,
    WASTE_OF_A_RESET,
    Http2Stream,
    SpareWindow,
)
from keyhole.http.server import RequestHandler
from keyhole.http.states import REQUEST, RESPONSE, State, Step
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keyhole.http.field import Field
    from keyhole.http.hpack import FieldSection
    from keyhole.http.request import RequestHead, RequestReader
    from keyhole.http.response import Reply
    from keyhole.http.server import RequestReceiver

_IDLE, _BODY, _DONE, _SWITCHED, _CLOSED = State
_HEAD, _WHOLE, _INTERIM, _END, _SWITCH, _NEXT, _CLOSE = Step

_STATUS_AT = slice(9, 12)
"""The position of the status in a status line of HTTP/1.1."""

_OK = b"200"
_ACCEPT = b"sec-websocket-accept"
_CONNECT = (b":method", b"CONNECT")


class StreamHandler(RequestHandler, Protocol):
    """The machine's view of a client's connection."""

    def request_refused(self, stream: int, why: str, size: int) -> None:
        """A head of so many bytes that is no request: `reject` answers it."""

    def stream_refused(self) -> None:
        """The client has opened one stream more than it may, which was reset."""

    def stream_lost(self, stream: int, why: str) -> None:
        """A request is gone: the client has reset it, or broke the rule that `why` says."""

    def stream_caught_up(self, stream: int) -> None:
        """The client has taken what was sent of a response."""


class Http2Server(Http2Machine):
    """One client's connection."""

    __slots__ = ("_greeted", "_handler", "_make_key", "reader")

    def __init__(
        self,
        reader: RequestReader,
        handler: StreamHandler,
        make_key: Callable[[], bytes],
        spare: SpareWindow | None = None,
    ) -> None:
        """`make_key` makes the key of a WebSocket's handshake with an origin of HTTP/1.1. Windows
        of streams grow out of `spare`, which other connections of the client's may share."""
        super().__init__(
            {Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS, Setting.ENABLE_CONNECT_PROTOCOL: 1}
        )
        if spare is not None:
            self._spare = spare
        self.reader = reader
        """Reads the next head."""
        self._handler = handler
        self._make_key = make_key
        self._greeted = False

    def receive(self, data: memoryview) -> None:
        """Take bytes of the client. Raises ConnectionFault."""
        if not self._greeted:
            text = self._held + data
            if not PREFACE.startswith(text[: len(PREFACE)]):
                raise ConnectionFault(Code.PROTOCOL_ERROR, "the client does not begin HTTP/2")
            self._held = text
            if len(text) < len(PREFACE):
                return
            self._greeted = True
            data, self._held = memoryview(text)[len(PREFACE) :], b""
        super().receive(data)

    def read_by(self, reader: RequestReader) -> None:
        """Another policy is in force: for the next head, and for trailers that wait (I6)."""
        self.reader = reader

    def close(self) -> None:
        """Read nothing more, and let go of everything."""
        if not self.closed:
            super().close()
            del self._handler  # nothing is reported any more

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def _take_fields(self, number: int, fields: FieldSection, *, ended: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._take_trailers(stream, fields, ended=ended)
            return
        if number % 2 == 0:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a client's streams have odd numbers")
        if number <= self.last:
            if number not in self._forgotten:
                raise ConnectionFault(Code.STREAM_CLOSED, "a field section is of a closed stream")
            self._count_waste()
            return
        if self.going or len(self.streams) >= MAX_STREAMS:
            self.last = number
            # A client may not have read our goodbye yet.
            self._count_waste(1 if self.going else WASTE_OF_A_RESET)
            if not self.going:
                self._handler.stream_refused()
            self._out.append(reset_frame(number, Code.REFUSED_STREAM))
            self._remember_reset(number)
            return
        self._begin(self._open(number), fields, ended=ended)

    def _begin(self, stream: Http2Stream, fields: FieldSection, *, ended: bool) -> None:
        handler, number = self._handler, stream.number
        try:
            head = self._read_head(fields, ended=ended)
        except Malformed as error:
            stream.incoming = _DONE
            self._count_waste(WASTE_OF_A_RESET)
            size = sum(len(name) + len(value) for name, value in fields)
            handler.request_refused(number, error.why, size)
            return
        stream.incoming = REQUEST[_IDLE][_WHOLE if ended else _HEAD]
        stream.method = head.method
        stream.wants_trailers = head.trailers
        if head.length >= 0 and not head.websocket:
            stream.left = head.length
        receiver = handler.request_begun(number, head)
        if self.streams.get(number) is stream:
            answered = stream.outgoing is _DONE
            stream.receiver = _DISCARD if answered else receiver

    def _read_head(self, fields: FieldSection, *, ended: bool) -> RequestHead:
        """Read a head, at once if it was read by this policy before. Raises Malformed."""
        read_as, known = fields.meaning
        if read_as == (self.reader, ended):
            return cast("RequestHead", known).copy()
        key = self._make_key() if _CONNECT in fields else b""
        text = request_head(fields, ended=ended, websocket_key=key, checked=self._checked)
        head = self.reader.parse(text)
        if len(text) <= MAX_KNOWN_HEAD and not key:
            fields.meaning = (self.reader, ended), head.copy()
        return head

    def _take_trailers(self, stream: Http2Stream, fields: FieldSection, *, ended: bool) -> None:
        if stream.incoming is not _BODY or stream.held_end is not None:
            raise StreamFault(Code.STREAM_CLOSED, "a field section comes where none may")
        if not ended or stream.left > 0:
            raise StreamFault(Code.PROTOCOL_ERROR, "trailers are not the end of the stream")
        try:
            trailers = trailer_fields(fields, self.reader.treat)
        except Malformed as error:
            raise StreamFault(Code.PROTOCOL_ERROR, error.why) from None
        if stream.paused or stream.held_size:
            stream.held_end = trailers
        else:
            self._end_incoming(stream, trailers)

    def _deliver(self, stream: Http2Stream, data: bytes | memoryview) -> None:
        cast("RequestReceiver", stream.receiver).request_data(data)

    def _end_incoming(self, stream: Http2Stream, trailers: Sequence[Field]) -> None:
        """Raises Malformed where trailers that waited may not go on by another policy."""
        for field in trailers:
            may_follow_body(field.name, self.reader.treat)
        stream.incoming = REQUEST[stream.incoming][_END]
        cast("RequestReceiver", stream.receiver).request_ended(trailers)
        if stream.outgoing is _DONE:
            self._forget(stream)

    def _lose(self, number: int, receiver: object, why: str, *, unread: bool = False) -> None:
        self._handler.stream_lost(number, why)

    def _caught_up(self, number: int) -> None:
        self._handler.stream_caught_up(number)

    def _peer_leaves(self, last: int) -> None:
        """Do nothing: a server opens no stream that a client could leave unserved."""

    # ── responses ─────────────────────────────────────────────────────────────────────────────────

    def send_interim(self, stream: int, start: bytes, lines: Iterable[bytes] = ()) -> bytes:
        """An interim response (1xx)."""
        mine = self._find(stream)
        mine.outgoing = RESPONSE[mine.outgoing][_INTERIM]
        self._send_section(stream, _status(start), lines, ended=False)
        return self.take()

    def begin_response(
        self, stream: int, start: bytes, lines: Iterable[bytes], length: int, *, body: bool = True
    ) -> bytes:
        """The head of the response; a negative `length` is not known. Without a `body`, the length
        is what a GET would have had (RFC 9110 §8.6)."""
        mine = self._find(stream)
        mine.outgoing = RESPONSE[mine.outgoing][_HEAD]
        pseudo = _status(start)
        if length >= 0:
            pseudo += encode_length(length)
        if body and not mine.wants_trailers:
            mine.to_send = length
        whole = not body or length == 0
        self._send_section(stream, pseudo, lines, ended=whole)
        if whole:
            self._end_outgoing(mine)
        return self.take()

    def end_response(self, stream: int, trailers: bytes = b"") -> bytes:
        """The end of the response, with these lines behind it."""
        mine = self.streams.get(stream)
        if mine is not None and mine.outgoing is _BODY:
            self._end(mine, trailers.splitlines(keepends=True))
            # What is held of the request, or still comes of it, is of no use any more.
            mine.receiver = _DISCARD
            self.unpause(stream)
            self.resume(stream)
        return self.take()

    def _end_outgoing(self, stream: Http2Stream) -> None:
        super()._end_outgoing(stream)
        stream.answered = True
        if stream.held_end is not None:
            self._forget(stream)  # the rest of the request is here, and of no use
        elif stream.incoming is _BODY and not 0 < stream.left <= STREAM_WINDOW:
            # A client that goes on with its request is told that the rest is not needed. A short
            # rest may come: curl 7.88 loses the response over the reset.
            self._reset(stream, Code.NO_ERROR)

    def send_reply(self, stream: int, reply: Reply, *, close: bool = False) -> bytes:
        """A whole response of the gateway's own. Other streams go on: nothing is closed."""
        mine = self._find(stream)
        body = b"" if mine.method == "HEAD" else reply.body
        out = self.begin_response(
            stream, reply.start, reply.lines, len(reply.body), body=bool(body)
        )
        if body:
            out += self.send_data(stream, body)
        return out + self.end_response(stream)

    def reject(self, stream: int, reply: Reply) -> bytes:
        """Answer a head that is no request, and end its stream as the protocol has it."""
        mine = self._find(stream)
        mine.incoming = _DONE
        out = self.begin_response(stream, reply.start, reply.lines, len(reply.body))
        out += self.send_data(stream, reply.body) + self.end_response(stream)
        self._out.append(reset_frame(stream, Code.PROTOCOL_ERROR))
        self._remember_reset(stream)
        self._forget(mine)
        return out + self.take()

    def switch(self, stream: int, start: bytes, lines: Iterable[bytes]) -> bytes:
        """Speak WebSocket on this stream from here on (RFC 8441 §5)."""
        mine = self._find(stream)
        mine.outgoing = RESPONSE[mine.outgoing][_HEAD]
        kept = [line for line in lines if not line.lower().startswith(_ACCEPT)]
        self._send_section(stream, encode_field(b":status", _OK), kept, ended=False)
        return self.take()


class _Discard:
    """Takes the rest of a request that is answered."""

    def request_data(self, data: bytes | memoryview) -> None: ...

    def request_ended(self, trailers: Sequence[Field]) -> None: ...


_DISCARD = _Discard()


@functools.lru_cache(64)
def _status(start: bytes) -> bytes:
    return encode_field(b":status", start[_STATUS_AT])
