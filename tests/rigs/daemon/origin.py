"""A service on loopback, over TLS, that repeats the credential it gets and writes it down."""

from __future__ import annotations

import contextlib
import queue
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.rigs.gateway import origins
from tests.rigs.gateway.talk import ok
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme

    from tests.rigs.gateway.talk import Message

NAMES = ("one.example", "two.example", "tunnel.example", "granted.example")

STREAM = "/v1/stream/"
"""What is under it answers with what the test feeds it, a line at a time."""


@dataclass(frozen=True)
class Seen:
    host: str
    path: str
    authorization: str


class Origin:
    """Serves all names until it is closed."""

    def __init__(self, authority: trustme.CA, host: str = "127.0.0.1") -> None:
        self.ca = authority.cert_pem.bytes().decode()
        self.seen: list[Seen] = []
        self._lines: dict[str, queue.Queue[str | None]] = defaultdict(queue.Queue)
        service = origins.Service(self._answer)
        self._origin = origins.Origin(service, origins.tls_for(authority, *NAMES), host)

    @property
    def address(self) -> str:
        """Where it listens, as `HOST:PORT`."""
        return self._origin.address

    @property
    def policy(self) -> str:
        """The tables that lead here."""
        connect = "".join(f'"{name}:443" = "{self._origin.address}"\n' for name in NAMES)
        return f'[upstream]\nca_file = "~/origin-ca.pem"\n[upstream.connect]\n{connect}'

    def close(self) -> None:
        """End it, and streams that nobody ended."""
        for lines in list(self._lines.values()):
            lines.put(None)
        self._origin.close()

    def feed(self, path: str, line: str | None) -> None:
        """The next line of a stream; None ends it."""
        self._lines[path].put(line)

    def credentials(self, path: str) -> list[str]:
        """What came with the requests for a path, in order."""
        return [each.authorization for each in self.seen if each.path == path]

    def _answer(self, message: Message) -> bytes | Iterator[bytes]:
        host, given = message.one("host") or "", message.one("authorization") or ""
        self.seen.append(Seen(host, message.target, given))
        if message.target.startswith(STREAM):
            return self._stream(message.target)
        return ok(f"{host} got {given}".encode())

    def _stream(self, path: str) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        yield b"Transfer-Encoding: chunked\r\n\r\n"
        while (line := self._next_line(path)) is not None:
            yield b"%x\r\n%b\n\r\n" % (len(line.encode()) + 1, line.encode())
        yield b"0\r\n\r\n"

    def _next_line(self, path: str) -> str | None:
        with contextlib.suppress(queue.Empty):
            return self._lines[path].get(timeout=PATIENCE)
        return None
