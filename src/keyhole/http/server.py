"""HTTP/1.1 on the server side: reads requests and writes responses. No socket, no clock.

Fed by the gateway with the bytes of one client's connection. Requests are handed over by callbacks
(the hot path has no event objects); bytes for the client are returned. Requests of one connection
come one after the other, so one stream is open at a time: the bytes of the next request are held
until the response of the present one is whole. Streams have numbers, as in `http2_server.py`, which
has the same calls for many streams at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from keyhole.http.body import ChunkedReader
from keyhole.http.field import END_SIZE, find_end
from keyhole.http.states import OVER, REQUEST, RESPONSE, State, Step
from keyhole.model.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from keyhole.http.field import Field
    from keyhole.http.request import RequestHead, RequestReader
    from keyhole.http.response import Reply

REQUESTS_AT_ONCE = 16
"""Requests read in one go before the caller looks at other connections: a millisecond (I12)."""

# A member of an enum that is named by way of its class is looked up each time.
_IDLE, _BODY, _DONE, _SWITCHED, _CLOSED = State
_HEAD, _WHOLE, _INTERIM, _END, _SWITCH, _NEXT, _CLOSE = Step

_CHUNKED_LINE = b"Transfer-Encoding: chunked\r\n"
_CLOSE_LINE = b"Connection: close\r\n"
_UPGRADE_LINES = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


class RequestReceiver(Protocol):
    """The machine's view of one stream: it receives the request's body."""

    def request_data(self, data: bytes | memoryview) -> None:
        """Bytes of the body, or of the protocol that was switched to; a view is good for this call
        alone."""

    def request_ended(self, trailers: Sequence[Field]) -> None:
        """The body is whole. Not called for a request without one, which is whole at its head."""


class RequestHandler(Protocol):
    """The machine's view of a client's connection."""

    def request_begun(self, stream: int, head: RequestHead) -> RequestReceiver:
        """A request's head. Returns the receiver of its body."""


class Http1Server:
    """One client's connection."""

    __slots__ = (
        "_chunked", "_chunks", "_handler", "_head_only", "_http10", "_left", "_receiver",
        "_searched", "behind", "closes", "head_size", "held", "paused", "reader", "request",
        "response", "stream", "wire_size",
    )  # fmt: skip

    def __init__(self, reader: RequestReader, handler: RequestHandler) -> None:
        self.reader = reader
        """Reads the next head."""
        self.request = _IDLE
        self.response = _IDLE
        self.stream = 0
        """The number of the present request, or of the last one."""
        self.closes = False
        """Whether the connection ends with the present response."""
        self.paused = False
        """Whether bytes are held, whatever they are: the caller waits for something."""
        self.behind = False
        """Whether whole requests may be held that only wait for the caller's next turn."""
        self.wire_size = 0
        """Bytes that the present body has had so far, its framing included."""
        self.head_size = 0
        """Bytes of the last head, also where it is no request."""
        self._handler: RequestHandler | None = handler
        self._receiver: RequestReceiver | None = None
        self.held = b""
        """Bytes that arrived and are not read yet."""
        self._searched = 0
        """The number of held bytes that were searched for the end of a head."""
        self._left = 0
        """Bytes of a body of known length that are still to come."""
        self._chunks: ChunkedReader | None = None
        self._http10 = False
        self._head_only = False
        self._chunked = False

    @property
    def head_begun(self) -> bool:
        """Whether the bytes that are held are the beginning of a head."""
        return self._searched > 0

    # ── requests ──────────────────────────────────────────────────────────────────────────────────

    def receive(self, data: memoryview) -> None:
        """Take bytes of the client. Raises Malformed, after which the connection is to be closed.

        A body of known length is passed on as the view that it came in: it need not be copied.
        """
        size = len(data)
        if size <= self._left and self.request is _BODY and not (self.held or self.paused):
            self.wire_size += size
            self._left -= size
            self._deliver(data, ended=not self._left)
            return
        held = self.held
        if held:
            self.held = b""
        self._advance(held + data if held else bytes(data))

    def read_by(self, reader: RequestReader) -> None:
        """Another policy is in force: for the next head, and for the trailers of this body (I6)."""
        self.reader = reader
        if self._chunks is not None:
            self._chunks.treat = reader.treat

    def pause(self) -> None:
        """Hold arriving bytes."""
        self.paused = True

    def resume(self) -> None:
        """Process the held bytes. Raises Malformed."""
        self.paused = self.behind = False
        if self.held:
            held, self.held = self.held, b""
            self._advance(held)

    def next(self, *, paused: bool = False) -> None:
        """The response is complete: be ready for the next request, some bytes of which may be
        held."""
        self.request = REQUEST[self.request][_NEXT]
        self.response = RESPONSE[self.response][_NEXT]
        self._receiver = None
        self.paused, self.behind = paused, False

    def close(self) -> None:
        """Stop reading, and release the handler."""
        self.request = REQUEST[self.request][_CLOSE]
        self.response = RESPONSE[self.response][_CLOSE]
        self._receiver = self._handler = None
        self.held = b""
        self._searched = self._left = 0

    def _advance(self, data: bytes) -> None:
        heads = 0
        while data:
            state = self.request
            if self.paused or state is _DONE:
                self.held = data
                return
            if state is _IDLE:
                self.head_size = len(data)
                end = find_end(data, self._searched)
                if end < 0:
                    self.held, self._searched = data, len(data)
                    return
                self._searched = 0
                if heads == REQUESTS_AT_ONCE:
                    self.held, self.behind = data, True
                    return
                heads += 1
                self.head_size = end
                head = self.reader.parse(data[:end])
                data = data[end + END_SIZE :]
                self._begin(head)
            elif state is _BODY:
                data = self._body(data)
            elif state is _SWITCHED:
                self._deliver(data, ended=False)
                return
            else:
                return

    def _begin(self, head: RequestHead) -> None:
        length = head.length
        self.request = REQUEST[self.request][_HEAD if length else _WHOLE]
        self.stream += 1
        self.closes = head.close
        self.wire_size = 0
        self._http10 = head.http10
        self._head_only = head.method == "HEAD"
        if length:
            self._chunks = ChunkedReader(self.reader.treat) if length < 0 else None
            self._left = max(0, length)
        handler = self._handler
        if handler is not None:
            receiver = handler.request_begun(self.stream, head)
            if self.request is _BODY or self.request is _DONE:
                self._receiver = receiver  # it was not answered at once

    def _body(self, data: bytes) -> bytes:
        """Hand over the bytes of the body; returns the bytes after it."""
        chunks = self._chunks
        trailers: Sequence[Field] = ()
        if chunks is None:
            piece, rest = data[: self._left], data[self._left :]
            self._left -= len(piece)
            ended = not self._left
        else:
            piece = chunks.feed(data)
            ended = chunks.done
            rest, trailers = (chunks.rest, chunks.trailers) if ended else (b"", ())
        self.wire_size += len(data) - len(rest)
        self._deliver(piece, ended=ended, trailers=trailers)
        return rest

    def _deliver(
        self, data: bytes | memoryview, *, ended: bool, trailers: Sequence[Field] = ()
    ) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        if data:
            receiver.request_data(data)
        if ended and self.request is _BODY and self._receiver is receiver:
            self.request = REQUEST[_BODY][_END]
            receiver.request_ended(trailers)

    # ── responses ─────────────────────────────────────────────────────────────────────────────────

    def send_interim(self, stream: int, start: bytes, lines: Iterable[bytes] = ()) -> bytes:
        """A response of class 1xx; nothing for HTTP/1.0, which knows none (RFC 9110 §15.2)."""
        if stream != self.stream:
            raise Misuse(OVER)
        self.response = RESPONSE[self.response][_INTERIM]
        return b"" if self._http10 else b"".join((start, *lines, b"\r\n"))

    def begin_response(
        self, stream: int, start: bytes, lines: Iterable[bytes], length: int, *, body: bool = True
    ) -> bytes:
        """The head of the response; a negative `length` is not known. Without a `body`, the length
        is what a GET would have had (RFC 9110 §8.6).

        The connection ends with a response that begins before the request is whole: bytes of the
        rest would be read as the next request's head.
        """
        if stream != self.stream:
            raise Misuse(OVER)
        self.response = RESPONSE[self.response][_HEAD]
        unbounded = body and length < 0
        self._chunked = unbounded and not self._http10
        if self.request is _BODY or (unbounded and self._http10):
            self.closes = True
        parts = [start, *lines]
        if self._chunked:
            parts.append(_CHUNKED_LINE)
        elif length >= 0:
            parts.append(b"Content-Length: %d\r\n" % length)
        if self.closes:
            parts.append(_CLOSE_LINE)
        parts.append(b"\r\n")
        return b"".join(parts)

    def send_data(self, stream: int, data: bytes | memoryview) -> bytes | memoryview:
        """Bytes of the response's body, framed where they must be."""
        if stream != self.stream:
            raise Misuse(OVER)
        if not self._chunked:
            return data
        return b"".join((b"%x\r\n" % len(data), data, b"\r\n"))

    def end_response(self, stream: int, trailers: bytes = b"") -> bytes:
        """The end of the response. Trailers are lines, and are lost where there are no chunks."""
        if stream != self.stream:
            raise Misuse(OVER)
        self.response = RESPONSE[self.response][_END]
        return b"0\r\n%b\r\n" % trailers if self._chunked else b""

    def send_reply(self, stream: int, reply: Reply, *, close: bool = False) -> bytes:
        """A whole response of the gateway's own."""
        self.closes = self.closes or close
        head = self.begin_response(stream, reply.start, reply.lines, len(reply.body))
        self.end_response(stream)
        return head if self._head_only else head + reply.body

    def skip_response(self, stream: int) -> None:
        """The response goes to the client unread, by another way: read the next request."""
        if stream != self.stream:
            raise Misuse(OVER)
        self.response = RESPONSE[self.response][_HEAD]
        self.response = RESPONSE[self.response][_END]
        self.next()

    def reject(self, reply: Reply) -> bytes:
        """Answer bytes that are no request, and read nothing more (RFC 9112 §2.2)."""
        self._http10 = self._head_only = False
        self.closes = True
        answer = self.send_reply(self.stream, reply)
        self.close()
        return answer

    def switch(self, stream: int, start: bytes, lines: Iterable[bytes]) -> bytes:
        """Speak WebSocket from here on: later bytes pass unchanged."""
        if stream != self.stream:
            raise Misuse(OVER)
        self.response = RESPONSE[self.response][_SWITCH]
        self.request = REQUEST[self.request][_SWITCH]
        return b"".join((start, *lines, _UPGRADE_LINES, b"\r\n"))
