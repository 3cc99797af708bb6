"""Starts judges, and buries them: what `jail.py` holds is a socket and a pidfd, never a pid.

Called by the jail itself, or, where the gateway may start no process any more, by whoever can:
`Bailiff` is for that process. It must stay the parent, since a judge dies with the thread that
started it, and the children that it buries are judges alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING

from keyhole.sandbox import hearing
from keyhole.sandbox.hearing import Said
from keyhole.sandbox.jailfilter import build_judge_filter
from keyhole.sandbox.judge import SOCKET

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Started = tuple[socket.socket, int]
    """A judge: the socket that it hears and answers on, and its pidfd. Whoever has them closes
    both."""

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
from keyhole.sandbox.judge import main
main()
"""
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them, and an exec would pass that on."""


def start_judge() -> Started:
    """A judge that waits for its case, a child of this thread. Raises OSError and Missing."""
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
    # Into an empty buffer that is larger: it neither waits nor is cut.
    with contextlib.suppress(OSError):
        control.send(hearing.frame(Said.FILTER, program))
    return control, pidfd


class Bailiff:
    """Starts judges for a jail in another process, and buries those that ended."""

    def __init__(self) -> None:
        self._started: list[int] = []

    @property
    def count(self) -> int:
        """Judges that have not ended."""
        self.bury()
        return len(self._started)

    def start(self) -> Started:
        """A judge, to be handed over; both descriptors are closed here by whoever hands it."""
        self.bury()
        control, pidfd = start_judge()
        try:
            self._started.append(os.dup(pidfd))
        except OSError:
            with control:
                end(pidfd)
            raise
        return control, pidfd

    def bury(self) -> None:
        """Let go of the dead. Called with each start; until then they are zombies and harmless."""
        for pidfd in [each for each in self._started if has_ended(each)]:
            self._started.remove(pidfd)
            reap(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """End all that are left, and wait until they have."""
        for pidfd in self._started:
            end(pidfd)
        self._started.clear()


class Process:
    """One judge, wherever it was started; with the thread that did, it ends (PDEATHSIG)."""

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
        kill(self._pidfd)

    def wait(self) -> None:
        """Wait for the end of one that was killed."""
        has_ended(self._pidfd, None)

    def watch(self, loop: asyncio.AbstractEventLoop, done: Callable[[Process], None]) -> None:
        """Have its end told."""
        self._loop = loop
        loop.add_reader(self._pidfd, done, self)

    def forget(self) -> None:
        """Let go of the last of one that ended."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        reap(self._pidfd)
        os.close(self._pidfd)


def has_ended(pidfd: int, milliseconds: int | None = 0) -> bool:
    """Whether a process, of ours or not, has ended; None waits until it has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(milliseconds))


def kill(pidfd: int) -> None:
    """End a process; one that has ended, and was buried by its parent, is no fault."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def reap(pidfd: int) -> None:
    """Bury a dead process, if it is a child of ours; if it is not, its parent does."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)


def end(pidfd: int) -> None:
    """Kill, wait, bury and let go."""
    kill(pidfd)
    has_ended(pidfd, None)
    reap(pidfd)
    os.close(pidfd)


def _spawn(control: socket.socket) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        actions.append((os.POSIX_SPAWN_DUP2, control.fileno(), SOCKET))
        # Whatever else this process was started with, the judge closes itself.
        words = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
        return os.posix_spawn(
            sys.executable, words, {}, file_actions=actions, setsigdef=_DEFAULT_SIGNALS
        )
    finally:
        os.close(null)
