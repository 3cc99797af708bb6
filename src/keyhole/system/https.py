"""Sends one request over verified TLS, within bounds, and reads the answer as strictly as an
origin's.

Used by the gateway and the vault for endpoints that issue tokens. The connection is the dialler's,
so the address was judged and the certificate verified before a byte is sent (I4). It follows no
redirect and keeps nothing; the caller limits the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.http.body import ChunkedReader, LengthReader
from keyhole.http.field import END_OF_HEAD
from keyhole.http.request import Treatment
from keyhole.http.response import Framing, parse_response
from keyhole.model.errors import Malformed
from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from keyhole.system.dialler import VerifiedStream

MAX_HEAD = 16 * 1024
"""Bytes of an answer's head."""

_AT_ONCE = 16 * 1024


class HttpsRequest(Struct, frozen=True, eq=False):
    """One request and its destination. The caller has checked that no part ends a line."""

    host: str
    """The name, and its port unless that is 443."""
    path: str
    content_type: str = ""
    body: bytes = b""
    agent: str = "keyhole"
    method: str = "POST"
    authorization: str = ""
    accept: str = "application/json"
    head_alone: bool = False
    """Whether the answer's body is not wanted: it may never end."""

    __repr__ = redacted_repr("body", "authorization")


class HttpsAnswer(Struct, frozen=True, eq=False):
    """The response."""

    status: int
    body: bytes
    challenges: tuple[str, ...] = ()
    """The values of WWW-Authenticate."""

    __repr__ = redacted_repr("body")


async def exchange(stream: VerifiedStream, request: HttpsRequest, limit: int) -> HttpsAnswer:
    """Send it and read an answer of at most `limit` bytes; the connection is closed.

    Raises Malformed and OSError.
    """
    answer = AnswerReader(request.method, limit)
    try:
        stream.writer.write(_written(request))
        await stream.writer.drain()
        while not (answer.done or (request.head_alone and answer.status)):
            data = await stream.reader.read(_AT_ONCE)
            if data:
                answer.feed(data)
            else:
                answer.end()
    finally:
        stream.writer.transport.abort()
    return HttpsAnswer(answer.status, bytes(answer.body), tuple(answer.challenges))


def _written(request: HttpsRequest) -> bytes:
    fields = {
        "Host": request.host,
        "User-Agent": request.agent,
        "Accept": request.accept,
        "Accept-Encoding": "identity",
        "Authorization": request.authorization,
        "Content-Type": request.content_type,
        # RFC 9110 §8.6: for methods that define a meaning for a body, also if it is empty.
        "Content-Length": "" if request.method == "GET" else str(len(request.body)),
        "Connection": "close",
    }
    lines = [f"{name}: {value}" for name, value in fields.items() if value]
    head = "\r\n".join((f"{request.method} {request.path} HTTP/1.1", *lines, "", ""))
    return head.encode("ascii") + request.body


class AnswerReader:
    """One response, collected until `done`."""

    def __init__(self, method: str, limit: int) -> None:
        self.status = 0
        self.body = bytearray()
        self.challenges: list[str] = []
        self.done = False
        self._method = method
        self._limit = limit
        self._head = bytearray()
        self._chunks: ChunkedReader | None = None
        self._length: LengthReader | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes; bytes after the response are dropped. Raises Malformed."""
        if not self.status:
            rest = self._read_head(data)
            if rest is None:
                return
            data = rest
        if self.done:
            return
        if self._chunks is not None:
            self.body += self._chunks.feed(data)
            self.done = self._chunks.done
        elif self._length is not None:
            self.body += self._length.feed(data)[0]
            self.done = self._length.done
        else:
            self.body += data
        self._check_size(len(self.body))

    def end(self) -> None:
        """The connection has ended. Raises Malformed, unless that ends the answer."""
        if not self.status or self._chunks is not None or self._length is not None:
            raise Malformed("it was cut off")
        self.done = True

    def _read_head(self, data: bytes) -> bytes | None:
        """Read the head. Returns the bytes after it, or None while it is incomplete."""
        searched = max(0, len(self._head) - len(END_OF_HEAD) + 1)
        self._head += data
        end = self._head.find(END_OF_HEAD, searched)
        if end < 0:
            if len(self._head) > MAX_HEAD:
                raise Malformed("its head has no end")
            return None
        response = parse_response(bytes(self._head[:end]), self._method, {}, _collect_challenges)
        self.status = response.status
        self.challenges = [each.value.decode("latin-1") for each in response.collected]
        if response.framing is Framing.CHUNKED:
            self._chunks = ChunkedReader(None)
        elif response.framing is Framing.LENGTH:
            self._check_size(response.length)
            self._length = LengthReader(response.length)
            self.done = self._length.done
        elif response.framing is Framing.NONE:
            self.done = True
        return bytes(self._head[end + len(END_OF_HEAD) :])

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise Malformed("its body is too long")


def _collect_challenges(name: bytes) -> Treatment:
    return Treatment.COLLECT if name == b"www-authenticate" else Treatment.KEEP
