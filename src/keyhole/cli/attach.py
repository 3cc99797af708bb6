"""`keyhole attach NAME`: connects this terminal to a sandbox's command, until Ctrl-P Ctrl-Q."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import find_sandbox
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK, EXIT_REFUSED, EXIT_UNUSABLE
from keyhole.cli.flags import add_name_argument
from keyhole.cli.gateway_client import complain
from keyhole.cli.running_sandbox import is_closed, open_engine
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.exec_socket import request_attach
from keyhole.model.errors import Refused
from keyhole.model.text import visible
from keyhole.sandbox.containers.console import ContainerConsole
from keyhole.sandbox.containers.engine import THE_USUAL_KEYS
from keyhole.sandbox.containers.engine_client import EngineFailed

if TYPE_CHECKING:
    import argparse
    import socket

    from keyhole.app.containers.named_sandbox import NamedSandbox, SandboxLifecycle, SandboxRecord
    from keyhole.app.setup.host_paths import HostPaths

_END_SECONDS = 15.0
"""How long the supervisor may take to record the exit code of a command that has ended."""
_LOOK_SECONDS = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Attach; returns the command's exit code, or 0 when the person detached."""
    places = find_host_paths()
    if not (os.isatty(0) and os.isatty(1)):
        words = "`keyhole attach` needs a terminal; with pipes use `keyhole exec`"
        raise CliError(words, EXIT_UNUSABLE)
    named = find_sandbox(places.sandboxes, options.name)
    record, life = named.running()
    if not record.command:
        raise Refused(
            f"{named.name} was given no command; `keyhole exec {named.name} -- sh` enters it"
        )
    joined = _Container(record, life) if record.contained else _Bubblewrap(places, life)
    if is_closed(named, places):
        complain(f"{named.name} is closed: nothing inside reaches anything any more")
    complain(f"this is the terminal of {named.name}; Ctrl-P Ctrl-Q leaves it")
    _attach(joined)
    return _ended(named, joined)


class _Container:
    """The command of a container, to which its engine attaches."""

    def __init__(self, record: SandboxRecord, life: SandboxLifecycle) -> None:
        self._engine = open_engine(record, life)
        self._other = self._engine.another()
        self._container = life.container

    def connect(self) -> socket.socket:
        return self._engine.attach(self._container, THE_USUAL_KEYS)

    def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(EngineFailed):
            self._other.resize(self._container, rows, columns)

    @property
    def runs(self) -> bool:
        with contextlib.suppress(EngineFailed):
            return self._engine.state(self._container).running
        return False


class _Bubblewrap:
    """The command of a bubblewrap sandbox, to which its supervisor attaches."""

    def __init__(self, places: HostPaths, life: SandboxLifecycle) -> None:
        self._runtime, self._session = places.runtime, life.session
        self._terminal = -1

    def connect(self) -> socket.socket:
        stream, self._terminal = request_attach(self._runtime, self._session)
        return stream

    def resize(self, rows: int, columns: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    @property
    def runs(self) -> bool:
        """Whether the terminal still has a command; it hangs up when the last one is gone."""
        poll = select.poll()
        poll.register(self._terminal, 0)
        return not any(ready & select.POLLHUP for _, ready in poll.poll(0))


def _attach(joined: _Container | _Bubblewrap) -> None:
    console = ContainerConsole(0, 1, 2)
    console.connect(joined.connect(), joined.resize, lambda: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: console.hang_up())
    signal.signal(signal.SIGWINCH, lambda *_: console.resize())
    # A size that differs from the real one, so that the program inside redraws its screen.
    joined.resize(*_OTHER_SIZE)
    try:
        console.start(lambda: False)
        console.wait()
    finally:
        console.close()


_OTHER_SIZE = (25, 79)


def _ended(named: NamedSandbox, joined: _Container | _Bubblewrap) -> int:
    if joined.runs:
        complain(f"left; {named.name} goes on")
        return EXIT_OK
    deadline = time.monotonic() + _END_SECONDS
    while named.is_held() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    life = named.life()
    code = life.code
    complain(f"{named.name} has ended" + ("" if code is None else f", exit code {code}"))
    if life.waiting:
        complain(visible(life.waiting))
    return EXIT_REFUSED if code is None else code
