"""A token endpoint on loopback: TLS, one answer for each connection, and what it was asked.

Used beside services of the same kind by tests/clients, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import trustme

from keyhole.vault.tokenendpoint import Reach
from tests.worlds import book

HOSTS = ("platform.claude.com", "auth.openai.com", "oauth2.googleapis.com")
PATIENCE = 20.0
"""Seconds after which a test says that it hangs."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    start: str
    headers: dict[str, str]
    body: bytes

    @property
    def fields(self) -> dict[str, Any]:
        """What was posted, whatever the form."""
        if self.headers["content-type"] == "application/json":
            return dict(json.loads(self.body))
        return dict(parse_qsl(self.body.decode()))


Reply = Callable[[Asked], Iterable[bytes]]


def answer(status: int, document: object, *more: str) -> list[bytes]:
    """An ordinary answer in JSON."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *more, "", ""]
    return ["\r\n".join(lines).encode() + body]


@dataclass(repr=False)
class TokenServer:
    """Answers with what `reply` gives, piece by piece. What it was asked is in no repr."""

    authority: trustme.CA
    hosts: tuple[str, ...] = HOSTS
    reply: Reply = lambda _: answer(500, {})
    asked: list[Asked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*self.hosts).configure_cert(self._context)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def reach(self, patience: float = PATIENCE) -> Reach:
        """The way here."""
        return Reach(lambda: book(self.connect), self.trusting, patience)

    @property
    def connect(self) -> str:
        """The table of a policy that leads here."""
        lines = [f'"{host}:443" = "127.0.0.1:{self.port}"\n' for host in self.hosts]
        return "[upstream.connect]\n" + "".join(lines)

    def trusting(self) -> ssl.SSLContext:
        """A context that knows the authority alone."""
        return ssl.create_default_context(cadata=self.authority.cert_pem.bytes().decode())

    def close(self) -> None:
        """End it, also while it accepts."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listener.close()

    def _serve(self) -> None:
        threads = []
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threads.append(threading.Thread(target=self._converse, args=(plain,)))
                threads[-1].start()
        for thread in threads:
            thread.join(PATIENCE)

    def _converse(self, plain: socket.socket) -> None:
        plain.settimeout(PATIENCE)
        with (
            contextlib.suppress(OSError),
            plain,
            self._context.wrap_socket(plain, server_side=True) as sock,
        ):
            asked = _read(sock)
            self.asked.append(asked)
            for piece in self.reply(asked):
                sock.sendall(piece)


def _read(sock: ssl.SSLSocket) -> Asked:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += sock.recv(65536) or _gone()
    head, _, body = raw.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += sock.recv(65536) or _gone()
    return Asked(start, headers, body)


def _gone() -> bytes:
    raise OSError("the client has gone")


def unsigned(**claims: object) -> str:
    """A JSON Web Token that nobody signed."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + ".sig"
