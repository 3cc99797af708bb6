"""The client in a container: load by wrk, and a download with Python's TLS, told by lines.

A file by itself, run by the image's own Python: it is told on standard input what to do, and says
on standard output what came of it, a line of JSON each. It goes to the name that everybody uses and
trusts what its environment says, as any program in the container does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def connect(host: str, port: int) -> ssl.SSLSocket:
    """A connection to the name, verified."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ssl.create_default_context().wrap_socket(sock, server_hostname=host)


def status(host: str, port: int, head: str) -> int:
    """How a request is answered."""
    with connect(host, port) as sock:
        sock.sendall(head.encode())
        return int(sock.recv(65536).split(b" ", 2)[1])


def download(host: str, port: int, head: str, size: int) -> float:
    """Seconds until so many bytes of a body have come."""
    sink = bytearray(1 << 18)
    with connect(host, port) as sock:
        start = time.perf_counter()
        sock.sendall(head.encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += sock.recv(65536)
        left = size - len(data.partition(b"\r\n\r\n")[2])
        while left and (got := sock.recv_into(sink)):
            left -= got
        took = time.perf_counter() - start
    if left:
        raise RuntimeError(f"{left} bytes did not come")
    return took


def begin(words: list[str], script: str) -> None:
    """Start the load, which goes on until `end`."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua", delete=False) as file:
        file.write(script)
    loads.append(
        subprocess.Popen(  # noqa: S603 - what the measurement says
            [word.format(script=file.name) for word in words], stdout=subprocess.PIPE, text=True
        )
    )


def end() -> str:
    """End the load; its own last line."""
    load = loads.pop()
    load.send_signal(signal.SIGINT)
    return load.communicate()[0].splitlines()[-1]


loads: list[subprocess.Popen[str]] = []


def main() -> None:
    """Do as told until nobody tells any more; `inbox CORE`."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    verbs: dict[str, Callable[..., object]] = {
        "status": status,
        "download": download,
        "begin": begin,
        "end": end,
    }
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        print(json.dumps(verbs[verb](**arguments)), flush=True)


if __name__ == "__main__":
    main()
