"""The demo's gRPC service, over HTTP/2.

Called by `demo_service.py` for connections on which TLS has agreed on it. Python brings no HTTP/2,
so this is the gateway's own machine of it, without the gateway.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from keyhole.http.frames import ConnectionFault
from keyhole.http.http2_server import Http2Server
from keyhole.http.request import RequestReader, Treatment
from keyhole.http.response import Reply

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from keyhole.http.field import Field
    from keyhole.http.request import RequestHead

CALLS = "calls.keyhole.example"
"""The name of the service for gRPC."""
PORT = 443
GRPC_TYPE = "application/grpc"

_OK = b"HTTP/1.1 200 OK\r\n"
_BAD = Reply(400, "Bad Request", (), b"")
_NO_WEBSOCKET = b""


def serve_calls(sock: ssl.SSLSocket, answer: Callable[[str, str], str]) -> None:
    """Answer each call of one connection, until its client ends it.

    `answer` takes the path of a call and its Authorization, and returns the text of the answer.
    """
    # A gateway that ends takes its connections along.
    with contextlib.suppress(OSError):
        _CallConnection(sock, answer).serve()


class _CallConnection:
    def __init__(self, sock: ssl.SSLSocket, answer: Callable[[str, str], str]) -> None:
        reader = RequestReader(CALLS, PORT, lambda _: Treatment.KEEP, {})
        self.machine = Http2Server(reader, self, lambda: _NO_WEBSOCKET)
        self.answer = answer
        self.sock = sock
        self.out: list[bytes] = []

    def serve(self) -> None:
        """Read and write in turns: a call's answer is short."""
        self._send()
        while data := self.sock.recv(1 << 16):
            try:
                self.machine.receive(memoryview(data))
                while self.machine.behind:
                    self.machine.read_on()
            except ConnectionFault as fault:
                self.out.append(self.machine.fail(fault))
                self._send()
                return
            self._send()

    def _send(self) -> None:
        out, self.out = self.out, []
        self.sock.sendall(b"".join((*out, self.machine.take())))

    # ── the machine's calls ───────────────────────────────────────────────────────────────────────

    def request_begun(self, stream: int, head: RequestHead) -> _Call:
        """A call has begun."""
        return _Call(self, stream, head)

    def request_refused(self, stream: int, why: str, size: int) -> None:
        """A head is no request."""
        self.out.append(self.machine.reject(stream, _BAD))

    def stream_refused(self) -> None:
        """The client has opened too many streams."""

    def stream_lost(self, stream: int, why: str) -> None:
        """The client has reset a stream."""

    def stream_caught_up(self, stream: int) -> None:
        """The client takes more of a stream."""


class _Call:
    def __init__(self, connection: _CallConnection, stream: int, head: RequestHead) -> None:
        self._connection = connection
        self._stream = stream
        self._head = head

    def request_data(self, data: bytes | memoryview) -> None:
        """The message of the demo's client is empty."""

    def request_ended(self, trailers: Sequence[Field]) -> None:
        """The call is whole: answer with one message, and the status in trailers."""
        machine, stream = self._connection.machine, self._stream
        fields = dict(line.split(b": ", 1) for line in self._head.lines)
        given = {name.lower(): value for name, value in fields.items()}.get(b"authorization", b"")
        path = self._head.path
        said = self._connection.answer(path, given.strip().decode("latin-1")).encode("ascii")
        # A message of protobuf with a string as its first field.
        message = b"\x0a%c%b" % (len(said), said)
        type_line = f"Content-Type: {GRPC_TYPE}\r\n".encode("ascii")
        self._connection.out += (
            machine.begin_response(stream, _OK, [type_line], -1),
            machine.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message),
            machine.end_response(stream, b"Grpc-Status: 0\r\n"),
        )
