"""Runs one program of the host within limits and returns its exit code and output.

Called by the `exec:` source of secrets, from several threads at once, and by `host/` for what a
program says of itself. The caller has judged the program and chosen its environment; this module
does not read Keyhole's own. The output may be a secret: no repr contains it.
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

from msgspec import Struct

from keyhole.model.redacted import redacted_repr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SECONDS = 20.0
"""Seconds for a program: a password manager that asks its server takes a few, and a person waits
for the answer."""

MAX_COMPLAINT = 8 * 1024
"""Bytes of standard error that are kept, the last ones: they usually have the reason."""

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
"""Asks the kernel to end it with the thread that started it (PR_SET_PDEATHSIG), then becomes the
program: a Keyhole that is killed leaves no program behind that waits for ever. Between fork and
exec a process with threads may not do that itself."""


class ChildResult(Struct, frozen=True):
    """How a program ended: by itself with a status, or stopped for a reason."""

    status: int = -1
    stopped: str = ""
    printed: bytes = b""
    complaint: bytes = b""

    __repr__ = redacted_repr("printed", "complaint")


class Children:
    """The programs that run; all of them can be ended at once."""

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._living: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        limit: int,
        *,
        tied: bool = True,
        given: bytes = b"",
    ) -> ChildResult:
        """Run a program in `/`, with `given` for its standard input, which a pipe must hold. Raises
        OSError if it cannot be started.

        It returns when the program itself ends: a process that it left in the background may hold
        the pipe open for any time. A program that is not `tied` starts some 15 ms sooner, and goes
        on to its own end when Keyhole is killed.
        """
        feeds = bool(given)
        started = _start_tied(argv, env, feeds=feeds) if tied else None
        child, status = started or (_start(argv, env, feeds=feeds), -1)
        with child:  # it is waited for at the end
            _feed(child, given)
            try:
                with self._lock:
                    self._living.add(child)
                    if self._closed:
                        _kill(child)
                following = _Following(child, limit)
                stopped = following.follow(self._seconds)
                _raise_if_not_started(status)
            finally:
                if status >= 0:
                    os.close(status)
                # Removed before it is waited for: `close` kills the processes that are listed, and
                # a listed number cannot belong to another process.
                with self._lock:
                    self._living.discard(child)
            return following.ended(child.wait(), stopped)

    def close(self) -> None:
        """End the running programs, and start no more."""
        with self._lock:
            self._closed = True
            for child in self._living:
                _kill(child)


def _feed(child: subprocess.Popen[bytes], given: bytes) -> None:
    """Write its standard input. A program that does not read it has ended, or does without."""
    if child.stdin is not None:
        with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
            pipe.write(given)


def _start(
    argv: Sequence[str],
    env: Mapping[str, str],
    descriptors: Sequence[int] = (),
    *,
    feeds: bool = False,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - no shell; the caller judged the program (I11)
        argv,
        # Never the project: programs read settings from their working directory, and the author of
        # a cloned repository writes those.
        cwd="/",
        env=dict(env),
        stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        pass_fds=descriptors,
    )


def _start_tied(
    argv: Sequence[str], env: Mapping[str, str], *, feeds: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Start the program, with a pipe for the error if it cannot be started."""
    status, theirs = os.pipe()
    try:
        words = [sys.executable, "-I", "-S", "-c", _MOUTH, str(theirs), str(os.getpid()), *argv]
        child = _start(words, env, [theirs], feeds=feeds)
    except BaseException:
        os.close(status)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(status, False)
    return child, status


def _raise_if_not_started(status: int) -> None:
    """Raise OSError if the program never ran."""
    if status < 0:
        return
    with contextlib.suppress(BlockingIOError):  # it was killed before it became the program
        if said := os.read(status, 16):
            raise OSError(int(said), os.strerror(int(said)))


class _Following:
    """Reads one program's two pipes until its end."""

    def __init__(self, child: subprocess.Popen[bytes], limit: int) -> None:
        self._child = child
        self._out, self._err = (p.fileno() for p in (child.stdout, child.stderr) if p)
        self._limit = limit
        self._printed = bytearray()
        self._complaint = bytearray()

    def follow(self, seconds: float) -> str:
        """Follow the program until it ends, or until it is stopped; returns why it was stopped."""
        stopped = "was interrupted"
        end = os.pidfd_open(self._child.pid)
        try:
            with selectors.DefaultSelector() as selector:
                for pipe in (self._out, self._err):
                    os.set_blocking(pipe, False)
                    selector.register(pipe, selectors.EVENT_READ)
                selector.register(end, selectors.EVENT_READ)
                stopped = self._wait(selector, end, seconds)
        finally:
            os.close(end)
            if stopped:
                _kill(self._child)
        if stopped:
            return stopped
        self._drain()
        return self._too_much()

    def ended(self, status: int, stopped: str) -> ChildResult:
        """The result with everything that is known."""
        return ChildResult(status, stopped, bytes(self._printed), bytes(self._complaint))

    def _wait(self, selector: selectors.BaseSelector, end: int, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fd == end:
                    return ""
                if not self._take(key.fd):
                    selector.unregister(key.fd)
            if over := self._too_much():
                return over
        return f"was ended after {seconds:.0f} seconds; it runs without a terminal to ask on"

    def _drain(self) -> None:
        """Read what is left in the pipes, within the limit: another process may go on printing."""
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
