"""A process of a measurement, asked over one socket; it ends when the socket does.

So that nothing is left behind, however the measurement ends: Ctrl-C reaches only the process that
measures (each peer is in a session of its own), and a peer whose asker is gone reads the end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PATIENCE = 180.0
"""Seconds for the longest answer: 200 sandboxes."""

MAX_MESSAGE = 1 << 20
MAX_SOCKETS = 3
_SCHEDULED = 2

Answer = tuple[Any, list[int]]


def cores() -> tuple[int, int]:
    """A core for the proxy, and one for the client and the origin."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


class Peer:
    """A running peer, in the eyes of who asks it."""

    def __init__(
        self,
        module: str,
        *words: str,
        core: int,
        before: Sequence[str] = (),
        checkout: Path | None = None,
    ) -> None:
        """Of another `checkout`, if one is given: by its own interpreter and packages."""
        self._name = module
        python = str(checkout / ".venv/bin/python") if checkout is not None else sys.executable
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(PATIENCE)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*before, python, "-m", module, str(theirs.fileno()), *words],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=checkout,
            )
        self.pid = self._process.pid
        # Before it has any thread: threads inherit it.
        os.sched_setaffinity(self.pid, {core})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, verb: str, descriptors: Sequence[int] = (), **arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Ask, and wait for the answer."""
        return self.fetch(verb, descriptors, **arguments)[0]

    def fetch(self, verb: str, descriptors: Sequence[int] = (), **arguments: object) -> Answer:
        """The same for an answer that comes with descriptors."""
        try:
            socket.send_fds(
                self._control, [json.dumps([verb, arguments]).encode()], list(descriptors)
            )
            data, received, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, MAX_SOCKETS)
        except ConnectionError:
            data, received = b"", []
        if not data:
            raise RuntimeError(f"{self._name} ended; its error is above")
        return json.loads(data), received


def serve(control: socket.socket, verbs: Mapping[str, Callable[..., object]]) -> None:
    """Be a peer: answer until nobody asks any more."""
    while (question := receive(control)) is not None:
        verb, arguments = question
        answer(control, verbs[verb](**arguments))


def receive(control: socket.socket) -> tuple[str, dict[str, Any]] | None:
    """The next question; None when the asker is gone."""
    data, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE, MAX_SOCKETS)
    if not data:
        return None
    verb, arguments = json.loads(data)
    if descriptors:
        arguments["descriptors"] = descriptors
    return verb, arguments


def answer(control: socket.socket, found: object) -> None:
    """Send an answer: a value, or sockets that are closed here."""
    if not isinstance(found, list) or not found or not isinstance(found[0], socket.socket):
        control.send(json.dumps(found).encode())
        return
    socket.send_fds(control, [b"null"], [each.fileno() for each in found])
    for each in found:
        each.close()


def cpu_seconds(pid: int) -> float:
    """The processor time that a process and its threads have used, to a nanosecond."""
    # clock_getcpuclockid(3), which Python has for threads alone.
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def memory(pid: int) -> int:
    """Bytes that a process has in memory, shared pages by their share (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel tells no PSS")
