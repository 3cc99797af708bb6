"""Runs inside a sandbox: does what it is told, one line of JSON each, and says what came of it.

Its text is handed to the Python in there; nothing of the suite is importable.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import sys
import threading
import time
from typing import Any

_open: dict[str, http.client.HTTPResponse] = {}
_kept: dict[str, http.client.HTTPSConnection] = {}


def connect(host: str) -> http.client.HTTPSConnection:
    """A connection of its own."""
    return http.client.HTTPSConnection(host, timeout=30, context=ssl.create_default_context())


def get(host: str, path: str) -> list[Any]:
    """One request on a new connection."""
    connection = connect(host)
    connection.request("GET", path)
    answer = connection.getresponse()
    said = [answer.status, answer.read().decode()]
    connection.close()
    return said


def send(host: str, path: str, fields: dict[str, str], body: str = "") -> list[Any]:
    """One request with these fields and this body on a new connection."""
    connection = connect(host)
    connection.request("POST" if body else "GET", path, body or None, fields)
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]


def again(host: str, path: str) -> list[Any]:
    """One request on a connection that is kept for the next one."""
    connection = _kept.setdefault(host, connect(host))
    connection.request("GET", path)
    answer = connection.getresponse()
    return [answer.status, answer.read().decode()]


def stream(host: str, path: str) -> int:
    """An answer that is not over yet."""
    connection = connect(host)
    connection.request("GET", path)
    _open[path] = connection.getresponse()
    return _open[path].status


def more(path: str) -> str:
    """The next line of it."""
    return _open[path].readline().decode()


def load(*hosts: str) -> int:
    """Ask all of them from now on, what is allowed and what is not; once before it returns."""

    def once() -> None:
        for host in hosts:
            for path in ("/v1/load", "/denied"):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    get(host, path)

    def endless() -> None:
        while True:
            once()
            time.sleep(0.05)  # the processor is for what looks at the gateway meanwhile

    once()
    threading.Thread(target=endless, daemon=True).start()
    return len(hosts)


def unix(path: str) -> str:
    """Who listens there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        return "connected"


def look(path: str) -> list[str]:
    """What is in a directory."""
    return os.listdir(path)


def read(path: str) -> str:
    """What is in a file of the home."""
    with open(os.path.expanduser(path), encoding="utf-8") as file:
        return file.read()


def namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def variables() -> dict[str, str]:
    """What a client finds."""
    return dict(os.environ)


def run(told: list[Any]) -> object:
    """One errand; a failure is its kind."""
    try:
        return globals()[told[0]](*told[1:])
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


say("ready")
for line in sys.stdin:
    say(json.dumps(run(json.loads(line))))
