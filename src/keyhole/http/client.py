"""HTTP/1.1 on the client side: writes requests and reads responses. No socket, no clock.

Fed by the gateway with the bytes of one origin's connection. The response is handed to the receiver
that came with the request; bytes for the origin are returned. One stream is open at a time; it
still has a number, as in `server.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.http.body import ChunkedReader
from keyhole.http.field import END_SIZE, find_end
from keyhole.http.response import Framing, parse_response
from keyhole.http.states import OVER, REQUEST, RESPONSE, State, Step
from keyhole.model.errors import Malformed, Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.http.field import Field, Memo
    from keyhole.http.request import OutboundHead, Treatment
    from keyhole.http.response import ResponseHead

MAX_INTERIM = 16
"""Interim responses (1xx) before the final one."""

_IDLE, _BODY, _DONE, _SWITCHED, _CLOSED = State
_HEAD, _WHOLE, _INTERIM, _END, _SWITCH, _NEXT, _CLOSE = Step
_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSED = Framing
_SWITCHING = 101

_CHUNKED_LINE = b"Transfer-Encoding: chunked\r\n"
_EXPECT_LINE = b"Expect: 100-continue\r\n"
_UPGRADE_LINES = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"

_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
"""RFC 9110 §8.6: methods that anticipate content say so even when there is none."""


class ResponseReceiver(Protocol):
    """The machine's view of one stream: it receives the response."""

    def response_interim(self, head: ResponseHead) -> None:
        """An interim response (1xx)."""

    def response_begun(self, head: ResponseHead, body: bytes | None) -> None:
        """The response's head, with its body if that is complete."""

    def response_data(self, data: bytes | memoryview) -> None:
        """Bytes of the body, or of the protocol that was switched to; a view is good for this call
        alone."""

    def response_ended(self, trailers: Sequence[Field]) -> None:
        """The response is complete."""


class FieldFilter(Protocol):
    """Decides which fields of a host's responses are passed on."""

    def treat(self, name: bytes) -> Treatment:
        """The treatment of the field with this lower-case name."""

    def put_back(self, head: ResponseHead, method: str) -> None:
        """Add to a head those of its collected fields that may be passed on."""

    def trailers(self, fields: Sequence[Field]) -> list[Field]:
        """The trailers that may be passed on."""


class Http1Client:
    """One origin's connection."""

    __slots__ = (
        "_chunks", "_fields", "_framed", "_held", "_interim", "_known", "_left", "_method",
        "_receiver", "_searched", "_surplus", "_treat", "head", "request", "response", "stream",
    )  # fmt: skip

    def __init__(self, known: Memo, fields: FieldFilter | None = None) -> None:
        """`known` is a memo of the lines of this host's responses. Without `fields`, all fields
        that are meant for a client are passed on."""
        self.request = _IDLE
        self.response = _IDLE
        self.stream = 0
        self.head: ResponseHead | None = None
        """The head of the present response, once it has begun."""
        self._known = known
        self._fields = fields
        self._treat = fields.treat if fields is not None else None
        self._receiver: ResponseReceiver | None = None
        self._method = ""
        self._framed = False
        """Whether the request's body is sent in chunks."""
        self._chunks: ChunkedReader | None = None
        self._left = 0
        self._held = b""
        self._searched = 0
        self._interim = 0
        self._surplus = False
        """Whether bytes have arrived that belong to no response."""

    # ── the request ───────────────────────────────────────────────────────────────────────────────

    def send_request(self, head: OutboundHead, receiver: ResponseReceiver) -> tuple[int, bytes]:
        """Begin a request. Returns its number and the bytes of its head."""
        length = head.length
        self.request = REQUEST[self.request][_HEAD if length else _WHOLE]
        self.stream += 1
        self.head = None
        self._receiver = receiver
        self._method = method = head.method
        self._interim = 0
        self._framed = length < 0
        parts = [
            f"{method} {head.target} HTTP/1.1\r\nHost: {head.authority}\r\n".encode("ascii"),
            *head.lines,
        ]
        if length < 0:
            parts.append(_CHUNKED_LINE)
        elif length or method in _WITH_LENGTH:
            parts.append(b"Content-Length: %d\r\n" % length)
        if head.expects_continue:
            parts.append(_EXPECT_LINE)
        if head.websocket:
            parts.append(_UPGRADE_LINES)
        parts.append(b"\r\n")
        return self.stream, b"".join(parts)

    def send_data(self, stream: int, data: bytes | memoryview) -> bytes | memoryview:
        """Bytes of the request's body, framed where they must be; or of the other protocol."""
        if stream != self.stream:
            raise Misuse(OVER)
        if not self._framed:
            return data
        return b"".join((b"%x\r\n" % len(data), data, b"\r\n"))

    def end_request(self, stream: int, trailers: Sequence[Field] = ()) -> bytes:
        """The end of the request's body."""
        if stream != self.stream:
            raise Misuse(OVER)
        self.request = REQUEST[self.request][_END]
        if not self._framed:
            return b""
        return b"0\r\n%b\r\n" % b"".join([field.line for field in trailers])

    def next(self) -> bool:
        """Be ready for another request, if the connection can take one: both messages are whole,
        and the origin neither closes nor has sent more than its response."""
        head, self._receiver = self.head, None
        if self._surplus or head is None or head.close:
            return False
        if self.request is not _DONE or self.response is not _DONE:
            return False
        self.request = REQUEST[_DONE][_NEXT]
        self.response = RESPONSE[_DONE][_NEXT]
        self.head = None
        return True

    # ── the response ──────────────────────────────────────────────────────────────────────────────

    def receive(self, data: memoryview) -> None:
        """Take bytes of the origin. Raises Malformed, after which the connection must close."""
        receiver = self._receiver
        if receiver is None:
            self._surplus = True
            return
        head = self.head
        if head is not None and head.framing is _LENGTH:
            self._body_of_length(receiver, data)
            return
        held = self._held
        if held:
            self._held = b""
        self._advance(receiver, held + data if held else bytes(data))

    def receive_end(self) -> bool:
        """The origin has ended its side properly. Returns whether the response is whole."""
        receiver, head = self._receiver, self.head
        if self.response is _BODY and head is not None and head.framing is _UNTIL_CLOSED:
            self.response = RESPONSE[self.response][_END]
            if receiver is not None:
                receiver.response_ended(())
            return True
        return self.response is _SWITCHED

    def _advance(self, receiver: ResponseReceiver, data: bytes) -> None:
        while self.response is _IDLE:
            end = find_end(data, self._searched)
            if end < 0:
                self._held, self._searched = data, len(data)
                return
            self._searched = 0
            head = parse_response(data[:end], self._method, self._known, self._treat)
            if head.collected and self._fields is not None:
                self._fields.put_back(head, self._method)
            data = data[end + END_SIZE :]
            if head.status < 200 and head.status != _SWITCHING:
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise Malformed("too many interim answers")
                receiver.response_interim(head)
            elif head.framing is _LENGTH and head.length <= len(data):
                self._whole(receiver, head, data)
                return
            else:
                self._begin(receiver, head)
            if self._receiver is not receiver:
                return  # it was refused, or needs nothing more
        self._body(receiver, data)

    def _whole(self, receiver: ResponseReceiver, head: ResponseHead, data: bytes) -> None:
        """Hand over a response that is complete."""
        self.head = head
        self.response = RESPONSE[self.response][_HEAD]
        length = head.length
        self._left = 0
        self._surplus = len(data) > length
        receiver.response_begun(head, data[:length])
        if self._receiver is receiver:
            self.response = RESPONSE[self.response][_END]
            receiver.response_ended(())

    def _begin(self, receiver: ResponseReceiver, head: ResponseHead) -> None:
        """Hand over the head, before its body."""
        self.head = head
        self._left = head.length
        self._chunks = ChunkedReader(None) if head.framing is _CHUNKED else None
        if head.status == _SWITCHING:
            self.response = RESPONSE[self.response][_SWITCH]
            self._framed = False
        else:
            self.response = RESPONSE[self.response][_HEAD]
        receiver.response_begun(head, None)

    def _body(self, receiver: ResponseReceiver, data: bytes) -> None:
        head, chunks = self.head, self._chunks
        if self.response is _SWITCHED:
            if data:
                receiver.response_data(data)
        elif head is None or self.response is not _BODY:
            self._surplus = self._surplus or bool(data)
        elif chunks is not None:
            payload = chunks.feed(data)
            if payload:
                receiver.response_data(payload)
            if chunks.done:
                trailers, fields = chunks.trailers, self._fields
                self._end(
                    receiver,
                    bool(chunks.rest),
                    fields.trailers(trailers) if fields is not None and trailers else trailers,
                )
        elif head.framing is _LENGTH:
            self._body_of_length(receiver, data)
        elif head.framing is _UNTIL_CLOSED:
            if data:
                receiver.response_data(data)
        else:
            self._end(receiver, bool(data))

    def _body_of_length(self, receiver: ResponseReceiver, data: bytes | memoryview) -> None:
        left = self._left
        surplus = len(data) > left
        if surplus:
            data = data[:left]
        self._left = left - len(data)
        if data:
            receiver.response_data(data)
        if not self._left:
            self._end(receiver, surplus)

    def _end(
        self, receiver: ResponseReceiver, surplus: bool, trailers: Sequence[Field] = ()
    ) -> None:
        self._surplus = self._surplus or surplus
        if self._receiver is receiver and self.response is _BODY:
            self.response = RESPONSE[self.response][_END]
            receiver.response_ended(trailers)
