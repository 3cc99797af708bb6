"""How `keyhole exec` waits for a command that was signalled."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest

from keyhole.app.run.early_start import FORWARDED
from keyhole.cli import exec_bubblewrap
from keyhole.cli.exec_bubblewrap import _SignalForwarder, _wait
from keyhole.sandbox.bwrap.job_control import is_stopped
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.control.exec_socket import ExecStarted

PROGRAM = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: os.write(1, b"heard\\n"))
os.write(1, b"ready\\n")
time.sleep(600)
"""


class Started:
    """A command, as the sandbox's first process would have started it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.line, self.other = socket.socketpair()

    def close(self) -> None:
        os.close(self.pidfd)
        self.line.close()
        self.other.close()


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[_SignalForwarder]:
    before = {number: signal.getsignal(number) for number in FORWARDED}
    monkeypatch.setattr(exec_bubblewrap, "_STOPPED_SECONDS", 0.1)
    yield _SignalForwarder()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_command_that_heard_its_signal_may_be_stopped_later(
    forwarded: _SignalForwarder,
) -> None:
    """A person types Ctrl-C in a program that goes on, and later Ctrl-Z: that is no end."""
    words = [sys.executable, "-I", "-c", PROGRAM]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
        started = Started(command.pid)
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == "ready\n"
            forwarded.started(cast("ExecStarted", started))
            forwarded._came(signal.SIGINT, None)
            assert command.stdout.readline() == "heard\n"

            def later() -> None:
                until(lambda: not forwarded.ending)
                command.send_signal(signal.SIGSTOP)
                until(lambda: is_stopped(command.pid))
                started.other.send(b"7")

            thread = threading.Thread(target=later)
            thread.start()
            assert _wait(cast("ExecStarted", started), forwarded) == 7
            thread.join(PATIENCE)
            # The control: a command that is kept stopped never gets its signal.
            forwarded._came(signal.SIGINT, None)
            assert _wait(cast("ExecStarted", started), forwarded) == 128 + signal.SIGINT
        finally:
            command.kill()
            started.close()
