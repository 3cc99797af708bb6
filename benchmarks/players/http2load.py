"""The client of intercepted HTTP/2: load by h2load, and its own measurements with a few frames.

As `httpload.py`, it verifies the one authority that it trusts before h2load, which verifies nobody,
is started.
"""

from __future__ import annotations

import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.players import duties
from benchmarks.players.client import door, resolve
from benchmarks.players.httpload import Client, raise_file_limit
from benchmarks.players.httporigin import BULK
from benchmarks.players.nginx import MESSAGE
from benchmarks.players.peer import serve
from benchmarks.players.program import dying_with_us
from keyhole.http.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEADER,
    PREFACE,
    Kind,
    frame,
    settings_frame,
    window_frame,
)
from keyhole.http.hpack import FieldDecoder, encode_field

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

MISSING = "h2load is not installed: apt-get install nghttp2-client"

SKIPPED_MESSAGES = 20
"""Messages at the start of a stream that are not timed: the path is still warming up."""

_DONE = re.compile(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_BODIES = {"message": MESSAGE, "bulk": bytes(BULK)}


def program() -> str | None:
    """Where h2load is, if it is."""
    return shutil.which("h2load")


class Http2Client(Client):
    """What the measurement asks for."""

    def __init__(self) -> None:
        super().__init__()
        self._talks: list[Talk] = []

    def aim(self, host: str, port: int, authority: str, name: str = duties.HOST) -> None:
        """Go there from now on, and trust that authority alone."""
        super().aim(host, port, authority)
        self._trust.set_alpn_protocols(["h2"])

    def status(self, target: str) -> int:
        """How a request is answered."""
        talk = Talk(self._connect())
        return talk.read(talk.begin(target, "GET", ended=True))

    def load(
        self,
        target: str,
        count: int,
        connections: int,
        streams: int,
        body: str = "",
        http1: bool = False,
    ) -> float:
        """Seconds for so many requests."""
        words = [f"-n{count}", f"-c{connections}", f"-m{streams}", "-t1"]
        words.append(f"--connect-to={self._where[0]}:{self._where[1]}")
        for line in duties.steady(target).decode().split("\r\n")[2:-2]:
            words += ["-H", line]
        if http1:
            words.append("--h1")
        if body:
            path = Path(self._directory.name) / body
            if not path.exists():
                path.write_bytes(_BODIES[body])
            words += ["-d", str(path)]
        if body == "message":
            words += ["-H", "te: trailers", "-H", "content-type: application/grpc"]
        start = time.perf_counter()
        ended = subprocess.run(  # noqa: S603 - found on the path, as a person's own
            [*dying_with_us(), str(program()), *words, f"https://{duties.HOST}{target}"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        took = time.perf_counter() - start
        done = _DONE.search(ended.stdout)
        if done is None or done.groups() != (str(count), "0", "0", "0"):
            raise RuntimeError(f"requests of the load failed: {ended.stdout}")
        return took

    def messages(self, count: int) -> float:
        """The median of seconds that a message takes to the origin and back, on one stream."""
        talk = Talk(self._connect())
        number = talk.begin(duties.SMALL, "POST", ended=False)
        delays = []
        for _ in range(count + SKIPPED_MESSAGES):
            start = time.perf_counter()
            talk.send(number, MESSAGE)
            talk.read_message(number, len(MESSAGE))
            delays.append(time.perf_counter() - start)
        return statistics.median(delays[SKIPPED_MESSAGES:])

    def hold(self, count: int) -> None:
        """Open so many connections, make one request on each, and leave them open."""
        for _ in range(count):
            talk = Talk(self._connect())
            talk.read(talk.begin(duties.SMALL, "GET", ended=True))
            self._talks.append(talk)

    def hold_streams(self, count: int) -> None:
        """Open so many streams on one connection, and leave them open."""
        talk = Talk(self._connect())
        for _ in range(count):
            number = talk.begin(duties.SMALL, "POST", ended=False)
            talk.send(number, MESSAGE)
            talk.read_message(number, len(MESSAGE))
        self._talks.append(talk)

    def release(self) -> None:
        """Close them."""
        self._talks.clear()


class Talk:
    """One connection, blocking."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self._sock = sock
        self._held = b""
        self._last = -1
        self._decoder = FieldDecoder()
        sock.sendall(PREFACE + settings_frame({}) + window_frame(0, 1 << 30))

    def begin(self, target: str, method: str, *, ended: bool) -> int:
        """Send a head; its number."""
        self._last += 2
        rows = [(":method", method), (":scheme", "https"), (":authority", duties.HOST)]
        rows.append((":path", target))
        for line in duties.steady(target).decode().split("\r\n")[2:-2]:
            name, _, value = line.partition(": ")
            rows.append((name.lower(), value))
        if not ended:
            rows += [("content-type", "application/grpc"), ("te", "trailers")]
        section = b"".join(encode_field(name.encode(), value.encode()) for name, value in rows)
        flags = END_HEADERS | (END_STREAM if ended else 0)
        self._sock.sendall(frame(Kind.HEADERS, flags, self._last, section))
        return self._last

    def send(self, number: int, data: bytes) -> None:
        """Send data on a stream."""
        self._sock.sendall(frame(Kind.DATA, 0, number, data))

    def read(self, number: int) -> int:
        """Read a whole response; its status."""
        status = 0
        for kind, flags, of, payload in self._frames():
            if kind == Kind.HEADERS:
                fields = dict(self._decoder.decode(payload))
                status = int(fields.get(b":status", status))
            if of == number and kind in (Kind.HEADERS, Kind.DATA) and flags & END_STREAM:
                break
        return status

    def read_message(self, number: int, size: int) -> None:
        """So many bytes of a stream."""
        for kind, flags, of, payload in self._frames():
            if kind == Kind.DATA and of == number:
                size -= len(payload)
                if size <= 0:
                    return
            elif kind == Kind.HEADERS and flags & END_STREAM:
                raise RuntimeError("the stream ended early")

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        while True:
            if len(self._held) >= HEADER.size:
                high, low, kind, flags, number = HEADER.unpack_from(self._held)
                stop = HEADER.size + (high << 8 | low)
                if len(self._held) >= stop:
                    payload, self._held = self._held[HEADER.size : stop], self._held[stop:]
                    if kind in (Kind.RST_STREAM, Kind.GOAWAY):
                        raise RuntimeError(f"the proxy has ended the stream: {payload!r}")
                    if kind == Kind.SETTINGS and not flags & ACK:
                        self._sock.sendall(frame(Kind.SETTINGS, ACK, 0))
                    yield kind, flags, number, payload
                    continue
            more = self._sock.recv(65536)
            if not more:
                raise RuntimeError("the connection was closed")
            self._held += more


def main() -> None:
    """Serve until the asker is gone."""
    raise_file_limit()
    client = Http2Client()
    own = (
        client.capture,
        client.aim,
        client.status,
        client.load,
        client.messages,
        client.hold,
        client.hold_streams,
        client.release,
    )
    verbs = {f.__name__: f for f in (door, resolve, *own)}
    serve(socket.socket(fileno=int(sys.argv[1])), verbs)


if __name__ == "__main__":
    main()
