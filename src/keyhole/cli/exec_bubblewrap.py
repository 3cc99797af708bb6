"""`keyhole exec` for a sandbox of bubblewrap: the process that holds it starts the command.

This process keeps the person's terminal and relays it by a pty of its own, as `keyhole run` does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.run.early_start import FORWARDED
from keyhole.cli.errors import CliError
from keyhole.cli.gateway_client import complain
from keyhole.control.exec_socket import ExecRequest, find_exec_sockets, request_exec
from keyhole.sandbox.bwrap.job_control import continue_job, is_stopped
from keyhole.sandbox.bwrap.terminal import Terminal

if TYPE_CHECKING:
    from keyhole.control.exec_socket import ExecStarted

SANDBOX_ENDED = 137
"""The exit code when the sandbox ended before the command: it was killed."""

_START_SECONDS = 1.0
"""How long signals wait for the start of the command."""

_STOPPED_SECONDS = 3.0
"""How long after a signal that ends programs a command may still be stopped. Attack: code inside
stops it again and again, so that it never gets the signal and its caller waits for ever."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_MAX_CODE = 16
"""Bytes of the message with the exit code."""


def exec_in_bubblewrap(
    runtime: Path, text: str, command: tuple[str, ...], environment: dict[str, str]
) -> int | None:
    """Run one command in the sandbox whose id begins with this text; returns its exit code, None if
    there is none. Raises Refused."""
    session = _find(runtime, text)
    if session is None:
        return None
    terminal = Terminal(0, 1, 2)
    request = ExecRequest(command, str(Path.cwd()), environment, terminal.interactive)
    streams = terminal.streams
    signals = _SignalForwarder()
    started = request_exec(
        runtime, session, request, (streams.stdin, streams.stdout, streams.stderr)
    )
    if started is None:
        return None
    with started.line, started.connection:
        try:
            signals.started(started)
            signal.signal(signal.SIGWINCH, lambda *_: terminal.resize())
            signal.signal(signal.SIGCONT, lambda *_: continue_job(started.pid))
            if terminal.interactive:
                terminal.resize()  # it may have changed before there was a handler
            terminal.start(lambda: is_stopped(started.pid))
            code = _wait(started, signals)
        finally:
            terminal.close()
    if code is None:
        terminal.make_room()
        complain("the sandbox has ended, and this command with it")
        return SANDBOX_ENDED
    return code


def _find(runtime: Path, text: str) -> str | None:
    found = find_exec_sockets(runtime, text) if text else []
    if len(found) > 1:
        raise CliError(f"{len(found)} sandboxes begin with {text}; type more of the id")
    return found[0] if found else None


def _wait(started: ExecStarted, signals: _SignalForwarder) -> int | None:
    """The exit code, as the sandbox's first process sends it, or that of a signal to a command that
    is kept stopped; None if the sandbox has ended."""
    # A signal may reach another thread of this process, and would not interrupt a blocked read.
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    poll = select.poll()
    for each in (started.line.fileno(), read_end):
        poll.register(each, select.POLLIN)
    try:
        while not any(
            ready == started.line.fileno() for ready, _ in poll.poll(signals.poll_milliseconds)
        ):
            with contextlib.suppress(BlockingIOError):
                os.read(read_end, 4096)
            if signals.is_due:
                if is_stopped(started.pid):
                    # The process that holds the sandbox ends the command.
                    return 128 + signals.ending
                signals.forget()
        said = started.line.recv(_MAX_CODE)
    except OSError:
        return None
    finally:
        signal.set_wakeup_fd(-1)
    return int(said) if said.isdigit() else None


class _SignalForwarder:
    """Forwards signals to the command. Those that come just before it is known to have started
    wait; later ones end this process, if the sandbox does not answer."""

    def __init__(self) -> None:
        self._pidfd = -1
        self._waiting: list[int] = []
        self._since = time.monotonic()
        self.ending = 0
        """The last signal that ends programs; 0: none came."""
        self._due = 0.0
        for number in FORWARDED:
            signal.signal(number, self._came)

    def started(self, started: ExecStarted) -> None:
        self._pidfd = started.pidfd
        for number in self._waiting:
            self._came(number, None)

    @property
    def poll_milliseconds(self) -> int | None:
        """How long to wait before the command is looked at; None: as long as it takes."""
        return 250 if self.ending else None

    @property
    def is_due(self) -> bool:
        """Whether a command that was signalled had its time."""
        return bool(self.ending) and time.monotonic() > self._due

    def forget(self) -> None:
        """The command runs, so it got the signal. It may be stopped later for other reasons."""
        self.ending = 0

    def _came(self, number: int, _: object) -> None:
        if self._pidfd >= 0:
            if number in _ENDING:
                self.ending, self._due = number, time.monotonic() + _STOPPED_SECONDS
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
                if number in (signal.SIGTERM, signal.SIGHUP):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        elif time.monotonic() - self._since < _START_SECONDS:
            self._waiting.append(number)
        else:
            raise KeyboardInterrupt
