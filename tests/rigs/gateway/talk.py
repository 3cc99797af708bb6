"""HTTP messages on a socket, byte by byte: what both ends of an inspected connection are told."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field

END = b"\r\n\r\n"
READ = 64 * 1024


class Ended(ConnectionError):
    """A proper end where more was expected; with what came before it."""


@dataclass
class Message:
    """One message as it was on the wire."""

    head: bytes
    body: bytes = b""
    chunks: list[bytes] | None = None
    """The payload of each chunk, when there were some."""
    trailers: bytes = b""
    connection: int = 0
    """At an origin: which of its connections it came by."""

    @property
    def start(self) -> str:
        """The request line or the status line."""
        return self.head.partition(b"\r\n")[0].decode("latin-1")

    @property
    def method(self) -> str:
        """Of a request."""
        return self.start.split(" ")[0]

    @property
    def target(self) -> str:
        """Of a request: path and query."""
        return self.start.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        """The fields by their names in lower case."""
        return dict(self.fields)

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.start.split()[1])

    @property
    def fields(self) -> list[tuple[str, str]]:
        """Names in lower case, and values."""
        rows = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = [row.partition(":") for row in rows]
        return [(name.lower(), value.strip()) for name, _, value in pairs]

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for found, value in self.fields if found == name]

    def one(self, name: str) -> str | None:
        """The value of a field that stands at most once."""
        values = self.all(name)
        assert len(values) <= 1, (name, values)
        return values[0] if values else None


@dataclass
class Talk:
    """One end of a connection."""

    sock: socket.socket
    _buffer: bytes = field(default=b"", repr=False)

    def send(self, *pieces: bytes) -> None:
        """Send each piece in a record of its own."""
        for piece in pieces:
            self.sock.sendall(piece)

    def more(self) -> bytes:
        """One read, as it comes; nothing at a proper end."""
        if self._buffer:
            data, self._buffer = self._buffer, b""
            return data
        return self.sock.recv(READ)

    def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self.sock.recv(READ)
            if not data:
                raise Ended(self._buffer)
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def until(self, mark: bytes) -> bytes:
        """What is before a mark, which is read too."""
        while mark not in self._buffer:
            data = self.sock.recv(READ)
            if not data:
                raise Ended(self._buffer)
            self._buffer += data
        data, _, self._buffer = self._buffer.partition(mark)
        return data

    def rest(self) -> bytes:
        """Everything up to a proper end; a broken one raises."""
        data, self._buffer = self._buffer, b""
        while piece := self.sock.recv(READ):
            data += piece
        return data

    def request(self) -> Message | None:
        """The next request with its body; None at the end."""
        try:
            message = Message(self.until(END))
        except Ended:
            return None
        self._read_body(message)
        return message

    def answer(self, method: str = "GET") -> Message:
        """The next answer, with its body."""
        message = Message(self.until(END))
        if message.status < 200 or message.status in (204, 304) or method == "HEAD":
            return message
        if not self._read_body(message):
            message.body = self.rest()
        return message

    def chunk(self) -> bytes:
        """The payload of one chunk; nothing for the last."""
        size = int(self.until(b"\r\n"), 16)
        if not size:
            return b""
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def _read_body(self, message: Message) -> bool:
        if message.one("transfer-encoding") is not None:
            message.chunks = []
            while chunk := self.chunk():
                message.chunks.append(chunk)
            message.body = b"".join(message.chunks)
            while line := self.until(b"\r\n"):
                message.trailers += line + b"\r\n"
            return True
        length = message.one("content-length")
        if length is None:
            return False
        message.body = self.exactly(int(length))
        return True

    def cut(self) -> bytes:
        """What still comes before the stream ends in a way that is no proper end."""
        data, self._buffer = self._buffer, b""
        try:
            while piece := self.sock.recv(READ):
                data += piece
        except (ConnectionError, ssl.SSLError):
            return data
        raise AssertionError(f"a proper end after {data!r}")

    def goodbye(self) -> None:
        if isinstance(self.sock, ssl.SSLSocket):
            self.sock.unwrap()

    def close(self) -> None:
        self.sock.close()


def ok(body: bytes = b"", *lines: bytes, status: bytes = b"200 OK") -> bytes:
    """An answer with a length."""
    fields = b"".join(line + b"\r\n" for line in lines)
    return b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)


def get(target: str = "/a", *lines: str, host: str = "ok.example") -> bytes:
    """A request without a body."""
    return head("GET", target, *lines, host=host)


def head(method: str, target: str, *lines: str, host: str = "ok.example") -> bytes:
    rows = (f"{method} {target} HTTP/1.1", f"Host: {host}", *lines)
    return "".join(f"{row}\r\n" for row in rows).encode("latin-1") + b"\r\n"
