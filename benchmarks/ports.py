"""A page from a published port of a sandbox, against the same server on this host's loopback.

Six connections that are kept open, as a browser has them. The servers are both outside of Keyhole's
processes: one that does some work for each request, as a dev server does, and for information one
that answers from memory.
"""

from __future__ import annotations

import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.players.project import make_project
from benchmarks.rounds import Row, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_LEAST = 0.8
CONNECTIONS = 6
REQUESTS = 2000
INNER = 3000

WORKS, ANSWERS = "a server that works 0.5 ms", "a server that answers from memory"

REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n" + b"a" * 4096

# `SERVER PORT SECONDS`: one thread, 4 KiB for each request.
SERVER = f"""
import asyncio, sys, time
REPLY = {REPLY!r}
WORK = float(sys.argv[2])
class Served(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        end = time.thread_time() + WORK
        while WORK and time.thread_time() < end:
            pass
        self.transport.write(REPLY)
async def main():
    server = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", int(sys.argv[1]))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def measure() -> list[Row]:
    """Requests per second, published and direct."""
    rows = []
    for name, seconds, bound in ((WORKS, 0.0005, AT_LEAST), (ANSWERS, 0.0, None)):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
            port, host = stack.enter_context(_published(Path(directory), seconds))
            own = stack.enter_context(_direct(seconds))
            found = interleave({"published": _asker(port, host), "direct": _asker(own, "x")})
        ratio = found["direct"].median / found["published"].median
        figure = f"{CONNECTIONS} connections, {1 / found['published'].median:8.0f} requests/s"
        rows.append(Row(f"published port, of {name}", figure, ratio, at_least=bound))
        rows.append(Row("  the same on loopback", f"{1 / found['direct'].median:8.0f} requests/s"))
    return rows


@contextmanager
def _published(directory: Path, seconds: float) -> Iterator[tuple[int, str]]:
    project, env = make_project(directory)
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    command = [keyhole, "run", "--trust", "--publish", f"0:{INNER}", "--"]
    command += ["python3", "-I", "-c", SERVER, str(INNER), str(seconds)]
    with _started(command, project, env) as process:
        told = ""
        while not (found := re.search(r"http://(\S+\.localhost:(\d+))/", told)):
            told = _line(process.stderr)
        yield int(found[2]), found[1]


@contextmanager
def _direct(seconds: float) -> Iterator[int]:
    command = ["/usr/bin/python3", "-I", "-c", SERVER, "0", str(seconds)]
    with _started(command, Path("/"), None) as process:
        yield process.port


class _Server:
    def __init__(self, command: list[str], at: Path, env: dict[str, str] | None) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own
            command,
            cwd=at,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.port = int(_line(self._process.stdout))
        self.stderr = self._process.stderr

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


@contextmanager
def _started(command: list[str], at: Path, env: dict[str, str] | None) -> Iterator[_Server]:
    made = _Server(command, at, env)
    try:
        yield made
    finally:
        made.close()


def _line(pipe: object) -> str:
    line: bytes = pipe.readline()  # type: ignore[attr-defined]
    if not line:
        raise RuntimeError("the server has ended")
    return line.decode()


def _asker(port: int, host: str) -> Callable[[], float]:
    """Seconds for each request, over connections that stay open."""
    asked = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    waiting = select.epoll()
    by_number = {}
    for _ in range(CONNECTIONS):
        made = socket.create_connection(("127.0.0.1", port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        waiting.register(made, select.EPOLLIN)
        by_number[made.fileno()] = made

    def run() -> float:
        left, under_way = REQUESTS, 0
        had = dict.fromkeys(by_number, 0)
        start = time.perf_counter()
        for made in by_number.values():
            made.sendall(asked)
            under_way += 1
        while under_way:
            for number, _ in waiting.poll():
                had[number] += len(by_number[number].recv(1 << 16))
                if had[number] < len(REPLY):
                    continue
                had[number], under_way, left = 0, under_way - 1, left - 1
                if left >= CONNECTIONS:
                    by_number[number].sendall(asked)
                    under_way += 1
        return (time.perf_counter() - start) / REQUESTS

    return run
