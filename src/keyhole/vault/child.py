"""Runs one program of the host within bounds and hands back how it ended and what it printed.

Called by the `exec:` source, from several threads at once. What was printed may be a secret: it is
in no repr, and this module decides nothing about it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SECONDS = 20.0
"""A password manager that asks its server takes a few; a person must see an answer meanwhile."""

MAX_COMPLAINT = 8 * 1024
"""Bytes of standard error that are kept, the last ones: the reason stands at the end."""

_AT_ONCE = 64 * 1024
"""Bytes of one read, which is a pipe's capacity."""

_MOUTH = """\
import ctypes, os, signal, sys
status, parent = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(status, False)
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() == parent:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(sys.argv[3], sys.argv[3:])
    except OSError as error:
        os.write(status, b"%d" % error.errno)
"""
"""Becomes the program, when it has asked the kernel to end it with the thread that started it
(PR_SET_PDEATHSIG): a Keyhole that is killed leaves no program behind that waits for ever. Between
fork and exec a process with threads may not do that itself."""

TOO_LATE = f"was ended after {MAX_SECONDS:.0f} seconds; it runs without a terminal to ask on"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: by itself with a status, or stopped for a reason."""

    status: int = -1
    stopped: str = ""
    printed: bytes = field(default=b"", repr=False)
    complaint: bytes = field(default=b"", repr=False)


class Children:
    """Programs under way. All that is left of them can be ended at once."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._living: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(self, argv: Sequence[str], env: Mapping[str, str], limit: int) -> Ended:
        """Run in `/` with nothing on standard input; OSError where it cannot be started.

        It ends when the program itself does: what it left in the background may hold the pipe
        open for as long as it likes.
        """
        child, status = _start(argv, env)
        with child:  # it is waited for at the end
            try:
                with self._lock:
                    self._living.add(child)
                    if self._closed:
                        _kill(child)
                following = _Following(child, limit)
                stopped = following.follow(time.monotonic() + self._seconds)
                _raise_if_not_started(status)
            finally:
                os.close(status)
                # Not waited for yet: whoever kills looks here first, and a number that is in here
                # cannot have become another process's.
                with self._lock:
                    self._living.discard(child)
            return following.ended(child.wait(), stopped)

    def close(self) -> None:
        """End what is under way, and what would still be started."""
        with self._lock:
            self._closed = True
            for child in self._living:
                _kill(child)


def _start(argv: Sequence[str], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """The program, and a pipe that says why it could not be started, if it could not."""
    status, theirs = os.pipe()
    try:
        words = [sys.executable, "-I", "-S", "-c", _MOUTH, str(theirs), str(os.getpid()), *argv]
        child = subprocess.Popen(  # noqa: S603 - no shell; the caller judged the program (I11)
            words,
            # Never the project: programs read settings from the directory that they stand in.
            cwd="/",
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[theirs],
        )
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(status, False)
    return child, status


def _raise_if_not_started(status: int) -> None:
    """OSError where the program never ran."""
    with contextlib.suppress(BlockingIOError):  # it was killed before it became the program
        if said := os.read(status, 16):
            raise OSError(int(said), os.strerror(int(said)))


class _Following:
    """One program's two pipes and its end, read as they come."""

    def __init__(self, child: subprocess.Popen[bytes], limit: int) -> None:
        self._child = child
        self._out, self._err = (p.fileno() for p in (child.stdout, child.stderr) if p)
        self._limit = limit
        self._printed = bytearray()
        self._complaint = bytearray()

    def follow(self, deadline: float) -> str:
        """Until it ends; or until it is stopped, and why."""
        stopped = "was interrupted"
        end = os.pidfd_open(self._child.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe in (self._out, self._err):
                    os.set_blocking(pipe, False)
                    selector.register(pipe, selectors.EVENT_READ)
                selector.register(end, selectors.EVENT_READ)
                stopped = self._wait(selector, end, deadline)
        finally:
            os.close(end)
            if stopped:
                _kill(self._child)
        if stopped:
            return stopped
        self._drain()
        return self._too_much()

    def ended(self, status: int, stopped: str) -> Ended:
        """All that is known of it."""
        return Ended(status, stopped, bytes(self._printed), bytes(self._complaint))

    def _wait(self, selector: selectors.BaseSelector, end: int, deadline: float) -> str:
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fd == end:
                    return ""
                if not self._take(key.fd):
                    selector.unregister(key.fd)
            if over := self._too_much():
                return over
        return TOO_LATE

    def _drain(self) -> None:
        """What is still in the pipes, and no more than the limit: someone may go on printing."""
        with contextlib.suppress(BlockingIOError):
            self._take(self._err)
        with contextlib.suppress(BlockingIOError):
            while self._take(self._out) and not self._too_much():
                pass

    def _take(self, pipe: int) -> bool:
        data = os.read(pipe, _AT_ONCE)
        if pipe == self._out:
            self._printed += data
        else:
            self._complaint += data
            del self._complaint[:-MAX_COMPLAINT]
        return bool(data)

    def _too_much(self) -> str:
        return f"printed more than {self._limit} bytes" if len(self._printed) > self._limit else ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the program and its children; it leads a session, so its number is its group's."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
