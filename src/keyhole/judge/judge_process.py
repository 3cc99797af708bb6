"""Starts judge processes and reaps them. `judge_pool.py` holds a socket and a pidfd, never a pid.

Called by the pool itself or, if the gateway may not start processes any more, by a process that
may: `JudgeSpawner` is for that process. It must stay the parent, since a judge dies with the thread
that started it; and it reaps only judges.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

import msgspec

import keyhole
from keyhole.confine.judge_filter import build_judge_filter
from keyhole.judge import judge_protocol
from keyhole.judge.judge import SOCKET
from keyhole.judge.judge_protocol import JudgeMessage
from keyhole.system.processes import has_ended, kill_process, reap_process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Started = tuple[socket.socket, int]
    """A judge: its socket and its pidfd. The holder closes both."""

_ROOT = os.path.dirname(os.path.abspath(keyhole.__path__[0]))
_PACKAGES = os.path.dirname(os.path.dirname(msgspec.__file__))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[2])
from keyhole.judge.judge import main
main()
"""
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and an exec would pass that on."""


def start_judge() -> Started:
    """Start a judge that waits for its case, as a child of this thread.

    Raises OSError and ResourceUnusable.
    """
    program = build_judge_filter()
    control, theirs = socket.socketpair()
    try:
        pid = _spawn(theirs)
    except BaseException:
        control.close()
        raise
    finally:
        theirs.close()
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        control.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    # The buffer is empty and larger than this, so sending neither blocks nor is cut short.
    with contextlib.suppress(OSError):
        control.send(judge_protocol.frame(JudgeMessage.FILTER, program))
    return control, pidfd


class JudgeSpawner:
    """Starts judges for a pool in another process, and reaps those that ended."""

    def __init__(self) -> None:
        self._started: list[int] = []

    @property
    def count(self) -> int:
        """Judges that have not ended."""
        self.reap_ended()
        return len(self._started)

    def start(self) -> Started:
        """Start a judge for another process; the caller passes both descriptors on and closes them
        here."""
        self.reap_ended()
        control, pidfd = start_judge()
        try:
            self._started.append(os.dup(pidfd))
        except OSError:
            with control:
                end_process(pidfd)
            raise
        return control, pidfd

    def reap_ended(self) -> None:
        """Reap ended judges. Called with each start; until then they are harmless zombies."""
        for pidfd in [each for each in self._started if has_ended(each)]:
            self._started.remove(pidfd)
            reap_process(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """End all that are left, and wait until they have."""
        for pidfd in self._started:
            end_process(pidfd)
        self._started.clear()


class JudgeProcess:
    """One judge, started here or elsewhere; it ends with the thread that started it (PDEATHSIG)."""

    def __init__(self, control: socket.socket, pidfd: int) -> None:
        self.control = control
        self.control.setblocking(False)
        self.expiry: asyncio.TimerHandle | None = None
        self._pidfd = pidfd
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return not has_ended(self._pidfd)

    def kill(self) -> None:
        """End it now."""
        if self.expiry is not None:
            self.expiry.cancel()
        self.control.close()
        kill_process(self._pidfd)

    def wait(self) -> None:
        """Wait for the end of one that was killed."""
        has_ended(self._pidfd, None)

    def watch(self, loop: asyncio.AbstractEventLoop, done: Callable[[JudgeProcess], None]) -> None:
        """Call `done` when it has ended."""
        self._loop = loop
        loop.add_reader(self._pidfd, done, self)

    def forget(self) -> None:
        """Release the last resources of an ended judge."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        reap_process(self._pidfd)
        os.close(self._pidfd)


def end_process(pidfd: int) -> None:
    """Kill it, wait, reap it and release its descriptor."""
    kill_process(pidfd)
    has_ended(pidfd, None)
    reap_process(pidfd)
    os.close(pidfd)


def _spawn(control: socket.socket) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        actions.append((os.POSIX_SPAWN_DUP2, control.fileno(), SOCKET))
        # The judge itself closes all other descriptors of this process.
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT, _PACKAGES]
        return os.posix_spawn(
            sys.executable, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS
        )
    finally:
        os.close(null)
