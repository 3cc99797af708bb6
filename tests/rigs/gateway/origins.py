"""The origin of all tests: a server on loopback, with TLS or without, each connection a thread.

`Origin` hands every connection to a function; `Service` is such a function for HTTP.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tests.rigs.gateway.talk import Message, Talk, ok

if TYPE_CHECKING:
    import trustme

Handler = Callable[[socket.socket], None]


def tls_for(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    """A server's context, with a certificate for these names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


class Origin:
    """A listener, on loopback unless told otherwise, that hands every connection to a function."""

    def __init__(
        self, handler: Handler, context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._handler = handler
        self._context = context
        self._host = host
        self._listener = socket.create_server((host, 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._threads: list[threading.Thread] = []
        self.open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def close(self) -> None:
        """End the listener and every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for sock in list(self.open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            self.open.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        plain = sock
        with contextlib.suppress(OSError):
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
                self.open.add(sock)  # the plain one is an empty shell from here on
            self._handler(sock)
        self.open -= {plain, sock}
        sock.close()
        plain.close()


def echo(sock: socket.socket) -> None:
    """Send back what comes, then half-close."""
    while data := sock.recv(256 * 1024):
        sock.sendall(data)
    if not isinstance(sock, ssl.SSLSocket):
        sock.shutdown(socket.SHUT_WR)


def web(sock: socket.socket) -> None:
    """Answer HTTP requests without a body; the answer repeats the request line."""
    with sock.makefile("rb") as lines:
        while line := lines.readline():
            length = 0
            while (field := lines.readline()).strip():
                if field.lower().startswith(b"content-length:"):
                    length = int(field.split(b":")[1])
            body = line.strip() + b"|" + lines.read(length)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def greet(sock: socket.socket) -> None:
    """Speak first, then echo."""
    sock.sendall(b"220 ready\r\n")
    echo(sock)


class Service:
    """An HTTP origin that writes down each request and answers as the test wants."""

    def __init__(
        self, answer: Callable[[Message], bytes | Iterable[bytes] | None] = lambda _: ok()
    ) -> None:
        """`answer` gives the bytes to send, at once or in pieces; None closes the connection."""
        self._answer = answer
        self.seen: list[Message] = []
        self.connections = 0

    def __call__(self, sock: socket.socket) -> None:
        self.connections += 1
        number, talk = self.connections, Talk(sock)
        while (message := talk.request()) is not None:
            message.connection = number
            self.seen.append(message)
            reply = self._answer(message)
            if reply is None:
                return
            for piece in (reply,) if isinstance(reply, bytes) else reply:
                talk.send(piece)
            if message.one("connection") == "close":
                return


def echo_head(message: Message) -> bytes:
    return ok(message.head)
