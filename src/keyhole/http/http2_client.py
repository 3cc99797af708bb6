"""HTTP/2 on the client side: writes requests and reads responses. No socket, no clock.

Has the calls of `client.py`, with many streams at once. Each response goes to the receiver that
came with its request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from keyhole.http.client import MAX_INTERIM, ResponseReceiver
from keyhole.http.crossing import response_head, trailer_fields
from keyhole.http.frames import (
    END_STREAM,
    MAX_NUMBER,
    PADDED,
    PREFACE,
    Code,
    ConnectionFault,
    Kind,
    Setting,
    StreamFault,
)
from keyhole.http.hpack import encode_field, encode_length
from keyhole.http.http2 import Http2Machine
from keyhole.http.http2_stream import (
    MAX_KNOWN_HEAD,
    MAX_KNOWN_LINE,
    MAX_KNOWN_STARTS,
    NO_LENGTH,
)
from keyhole.http.response import Framing, parse_response
from keyhole.http.states import REQUEST, RESPONSE, State, Step
from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.http.client import FieldFilter
    from keyhole.http.field import Field, Memo
    from keyhole.http.hpack import FieldSection
    from keyhole.http.http2_stream import Http2Stream
    from keyhole.http.request import OutboundHead
    from keyhole.http.response import ResponseHead

_IDLE, _BODY, _DONE, _SWITCHED, _CLOSED = State
_HEAD, _WHOLE, _INTERIM, _END, _SWITCH, _NEXT, _CLOSE = Step

_HTTPS = encode_field(b":scheme", b"https")
_EXPECT = encode_field(b"expect", b"100-continue")
_TE = encode_field(b"te", b"trailers")
_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
_DATA = int(Kind.DATA)
_TRAILERS = "trailers"

_CUT: Sequence[Field] = []
"""In place of trailers: a response that was reset behind the data that is held of it."""


class StreamReceiver(ResponseReceiver, Protocol):
    """The machine's view of one stream: it receives the response."""

    def response_lost(self, why: str, *, unread: bool) -> None:
        """There is no response, or no more of it. Without `why` the origin has reset the stream;
        it has surely not read the request when that is `unread`."""

    def request_caught_up(self) -> None:
        """The origin has taken all data of the request that waited."""


class Http2Client(Http2Machine):
    """One origin's connection."""

    __slots__ = ("_begun", "_fields", "_known", "_starts", "_treat")

    def __init__(self, known: Memo, fields: FieldFilter | None = None) -> None:
        """As of `Http1Client`."""
        super().__init__({Setting.ENABLE_PUSH: 0, Setting.MAX_CONCURRENT_STREAMS: 0})
        self._out.insert(0, PREFACE)
        self._known = known
        self._fields = fields
        self._treat = fields.treat if fields is not None else None
        self._starts: dict[tuple[str, str, str], bytes] = {}
        """Pseudo-fields that were written before, by method, authority and target."""
        self._begun: tuple[Http2Stream, ResponseHead] | None = None
        """A head whose body may follow at once: it is reported with it, if that is whole."""

    @property
    def open_to_requests(self) -> bool:
        """Whether another request can be sent."""
        return not (
            self.going
            or self.peer_going
            or len(self.streams) >= self.peer_streams
            or self.last >= MAX_NUMBER - 2
        )

    @property
    def _last_served(self) -> int:
        return 0  # an origin begins no streams

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def send_request(self, head: OutboundHead, receiver: StreamReceiver) -> tuple[int, bytes]:
        """Begin a request. Returns its number and the bytes of its head."""
        number = self.last + 2 if self.last else 1
        stream = self._open(number)
        length = head.length
        stream.outgoing = REQUEST[_IDLE][_HEAD if length else _WHOLE]
        stream.receiver = receiver
        stream.method = method = head.method
        stream.to_send = length
        pseudo = self._encode_start(head)
        if length > 0 or (not length and method in _WITH_LENGTH):
            pseudo += encode_length(length)
        if head.expects_continue:
            pseudo += _EXPECT
        if head.trailers:
            pseudo += _TE
        self._send_section(number, pseudo, head.lines, ended=not length)
        if not length:
            stream.ending = True
        return number, self.take()

    def _encode_start(self, head: OutboundHead) -> bytes:
        """The pseudo-fields of a request."""
        key = (head.method, head.authority, head.target)
        known = self._starts.get(key)
        if known is None:
            known = b"".join(
                (
                    encode_field(b":method", head.method.encode("ascii")),
                    _HTTPS,
                    encode_field(b":authority", head.authority.encode("ascii")),
                    encode_field(b":path", head.target.encode("ascii")),
                )
            )
            if len(head.target) <= MAX_KNOWN_LINE:
                if len(self._starts) >= MAX_KNOWN_STARTS:
                    self._starts.clear()
                self._starts[key] = known
        return known

    def expect_trailers(self, stream: int) -> None:
        """The request does not end with the last byte that it has announced, but by a call."""
        mine = self.streams.get(stream)
        if mine is not None:
            mine.to_send = NO_LENGTH

    def end_request(self, stream: int, trailers: Sequence[Field] = ()) -> bytes:
        """The end of the request's body."""
        mine = self.streams.get(stream)
        if mine is not None and mine.outgoing is _BODY:
            self._end(mine, [field.line for field in trailers])
        return self.take()

    # ── responses ─────────────────────────────────────────────────────────────────────────────────

    def _take_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> int:
        if self._begun is not None:
            stream, head = self._begun
            whole = kind == _DATA and number == stream.number and flags & END_STREAM
            if whole and not flags & PADDED and stream.left in (-1, len(payload)):
                self._begun = None
                self._take_whole(stream, head, payload)
                return 1
            self._report_head()
            if self.closed:
                return 1
        return super()._take_frame(kind, flags, number, payload)

    def _after_frames(self) -> None:
        self._report_head()
        super()._after_frames()

    def _report_head(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            stream, head = begun
            _receiver(stream).response_begun(head, None)

    def _take_whole(self, stream: Http2Stream, head: ResponseHead, payload: memoryview) -> None:
        """The body of a response, which is here from its head to its end."""
        size = len(payload)
        self._window -= size
        stream.window -= size
        if self._window < 0 or stream.window < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "data goes beyond the window")
        self._credit(size)
        head.framing, head.length = Framing.LENGTH, size
        stream.incoming = RESPONSE[_BODY][_END]
        receiver = _receiver(stream)
        receiver.response_begun(head, bytes(payload))
        self._end_response(stream, receiver, ())

    def _take_fields(self, number: int, fields: FieldSection, *, ended: bool) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._take_unexpected(number)
        elif stream.incoming is _IDLE:
            self._take_head(stream, fields, ended=ended)
        else:
            self._take_trailers(stream, fields, ended=ended)

    def _take_head(self, stream: Http2Stream, fields: FieldSection, *, ended: bool) -> None:
        receiver, method = _receiver(stream), stream.method
        try:
            head = self._read_head(fields, method, ended=ended)
        except Malformed as error:
            raise StreamFault(Code.PROTOCOL_ERROR, error.why) from None
        if head.status < 200:
            stream.interim += 1
            if stream.interim > MAX_INTERIM:
                raise StreamFault(Code.ENHANCE_YOUR_CALM, "too many interim answers")
            receiver.response_interim(head)
            return
        stream.incoming = RESPONSE[_IDLE][_HEAD]
        if ended:
            stream.incoming = RESPONSE[_BODY][_END]
            if head.framing is Framing.LENGTH:
                receiver.response_begun(head, b"")
            else:
                receiver.response_begun(head, None)
            self._end_response(stream, receiver, ())
            return
        if head.framing is Framing.LENGTH:
            stream.left = head.length
        elif head.framing is Framing.NONE:
            stream.left = 0
        if head.framing is not Framing.NONE and not stream.paused:
            self._begun = (stream, head)
        else:
            receiver.response_begun(head, None)

    def _read_head(self, fields: FieldSection, method: str, *, ended: bool) -> ResponseHead:
        """Read a head, at once if it was read before. Raises Malformed."""
        read_as, known = fields.meaning
        if read_as == (method, ended):
            return cast("ResponseHead", known).copy()
        text = response_head(fields, method, ended=ended, checked=self._checked)
        head = parse_response(text, method, self._known, self._treat)
        if head.collected and self._fields is not None:
            self._fields.put_back(head, method)
        if len(text) <= MAX_KNOWN_HEAD:
            fields.meaning = (method, ended), head.copy()
        return head

    def _read_trailers(self, fields: FieldSection) -> Sequence[Field]:
        """The same for the fields behind a body."""
        read_as, known = fields.meaning
        if read_as == _TRAILERS:
            return cast("Sequence[Field]", known)
        trailers = trailer_fields(fields, None)
        if trailers and self._fields is not None:
            trailers = self._fields.trailers(trailers)
        fields.meaning = _TRAILERS, trailers
        return trailers

    def _take_trailers(self, stream: Http2Stream, fields: FieldSection, *, ended: bool) -> None:
        if stream.incoming is not _BODY or stream.held_end is not None:
            raise StreamFault(Code.STREAM_CLOSED, "a field section comes where none may")
        if not ended or stream.left > 0:
            raise StreamFault(Code.PROTOCOL_ERROR, "trailers are not the end of the stream")
        try:
            trailers = self._read_trailers(fields)
        except Malformed as error:
            raise StreamFault(Code.PROTOCOL_ERROR, error.why) from None
        if stream.paused or stream.held_size:
            stream.held_end = trailers
        else:
            self._end_incoming(stream, trailers)

    def _deliver(self, stream: Http2Stream, data: bytes | memoryview) -> None:
        _receiver(stream).response_data(data)

    def _end_incoming(self, stream: Http2Stream, trailers: Sequence[Field]) -> None:
        if trailers is _CUT:
            receiver = _receiver(stream)
            self._forget(stream)
            receiver.response_lost("", unread=False)
            return
        stream.incoming = RESPONSE[stream.incoming][_END]
        self._end_response(stream, _receiver(stream), trailers)

    def _end_response(
        self, stream: Http2Stream, receiver: StreamReceiver, trailers: Sequence[Field]
    ) -> None:
        if self.streams.get(stream.number) is not stream:
            return  # it was refused, or needs nothing further
        if stream.outgoing is _DONE:
            self._forget(stream)
        receiver.response_ended(trailers)

    def _take_reset(self, number: int, code: int) -> None:
        stream = self.streams.get(number)
        if stream is None or stream.incoming is not _BODY or code != Code.NO_ERROR:
            super()._take_reset(number, code)
            return
        # RFC 9113 §8.1: the response is whole, and the rest of the request is not needed. Node may
        # say so before the end of the stream, when all that it has announced is here.
        if stream.held_end is None:
            if stream.left and not stream.held_size:
                super()._take_reset(number, code)
                return
            stream.held_end = _CUT if stream.left else ()
        stream.pending = None
        self._waiting.pop(number, None)
        self._end_outgoing(stream)
        if not stream.paused:
            self.resume(number)

    def _lose(self, number: int, receiver: object, why: str, *, unread: bool = False) -> None:
        cast("StreamReceiver", receiver).response_lost(why, unread=unread)

    def _caught_up(self, number: int) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            _receiver(stream).request_caught_up()

    def _peer_leaves(self, last: int) -> None:
        """Requests that the origin has not read can be sent elsewhere (RFC 9113 §6.8)."""
        for stream in [each for each in self.streams.values() if each.number > last]:
            receiver = _receiver(stream)
            self._forget(stream)
            receiver.response_lost("", unread=True)


def _receiver(stream: Http2Stream) -> StreamReceiver:
    return cast("StreamReceiver", stream.receiver)
