"""What the command gets for standard input, output and error, and the relay in between.

A terminal is never passed in: the command gets a fresh pty, since whoever holds the user's own
could push keystrokes into the shell that waits behind it. Anonymous pipes and /dev/null pass;
anything else is relayed by pipes. A socket reaches the host's network; a file, opened again as
/proc/self/fd/N, could be written where it was only given to be read, and read where it was given
to be written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import stat
import struct
import termios
import threading
import time
import tty
from typing import TYPE_CHECKING

from keyhole.sandbox.helper import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 65536
_SUSPEND = b"\x1a"
_END_OF_STRING = b"\x18\x1b\\\x1b[m"
"""Cancels a control sequence or string left open, and plain colours: nothing that is seen."""
_DEVICE_NULL = os.makedev(1, 3)
_STOP_SECONDS = 2.0
"""How long after Ctrl-Z a command is seen as stopped by it; a busy host takes a moment."""
_DRAIN_SECONDS = 5.0
"""How long output that is still in flight is waited for after the sandbox has ended."""


class Terminal:
    """Owns the pty, the pipes and the threads of one run. `close` restores the user's terminal."""

    def __init__(self, stdin: int, stdout: int, stderr: int) -> None:
        self._outer = (stdin, stdout, stderr)
        self._terminals = [fd for fd in self._outer if os.isatty(fd)]
        self._saved: list[object] | None = None
        self._suspend_typed = threading.Event()
        self._closed = False
        self._settings = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._inner: list[int] = []
        self.interactive = bool(self._terminals) and os.isatty(stdin)
        self.raw = False
        """Whether the user's terminal now wants carriage returns spelled out."""
        self._master = self._slave = -1
        if self._terminals:
            self._master, self._slave = pty.openpty()
            self.resize()
            if not self.interactive:
                _pass_through(self._slave)
        self.streams = Streams(*(self._inner_end(i, fd) for i, fd in enumerate(self._outer)))

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to relay, once the helper has its ends; `suspended`: did the command stop?"""
        for descriptor in {self._slave, *self._inner} - {-1}:
            os.close(descriptor)
        for thread in self._threads:
            thread.start()
        if self._master < 0:
            return
        if self.interactive:
            # Before the first output comes: its line ends are already those of a terminal.
            self._saved = termios.tcgetattr(self._outer[0])
            self._make_raw()
        shown = next(fd for fd in (*self._outer[1:], self._outer[0]) if os.isatty(fd))
        self._begin(self._copy, self._master, shown, drains=True)
        if self.interactive:
            self._begin(self._type)
            self._begin(self._watch, suspended)

    def resize(self) -> None:
        """Give the pty the size of the user's terminal."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(
                self._terminals[0], termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0)
            )
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Wait for the last output, and give the terminal back as it was."""
        for thread in self._threads:
            if getattr(thread, "drains", False):
                thread.join(_DRAIN_SECONDS)
        with self._settings:
            self._closed = True  # whoever wakes from Ctrl-Z only now leaves the terminal alone
        # An answer to a question that the command asked the terminal at the end is not for the
        # shell to read; and a string that it left open must not swallow our own lines.
        self._restore(termios.TCSAFLUSH)
        for descriptor in self._terminals[-1:]:
            with contextlib.suppress(OSError):
                os.write(descriptor, _END_OF_STRING)

    def _inner_end(self, index: int, descriptor: int) -> int:
        if os.isatty(descriptor):
            return self._slave
        status = os.fstat(descriptor)
        is_null = stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEVICE_NULL
        if is_null or os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:["):
            return descriptor
        read_end, write_end = os.pipe()
        if index == 0:
            self._prepare(descriptor, write_end, drains=False)
            inner = read_end
        else:
            self._prepare(read_end, descriptor, drains=True)
            inner = write_end
        self._inner.append(inner)
        return inner

    def _prepare(self, source: int, sink: int, *, drains: bool) -> None:
        thread = threading.Thread(target=self._copy, args=(source, sink), daemon=True)
        thread.drains = drains  # type: ignore[attr-defined]
        self._threads.append(thread)

    def _begin(self, work: Callable[..., None], *args: object, drains: bool = False) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        thread.drains = drains  # type: ignore[attr-defined]
        self._threads.append(thread)
        thread.start()

    def _copy(self, source: int, sink: int) -> None:
        # A pty whose last user is gone answers EIO, a closed pipe EPIPE: both end the copy.
        with contextlib.suppress(OSError):
            while data := os.read(source, CHUNK):
                _write_all(sink, data)
        if sink not in self._outer:
            os.close(sink)

    def _type(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._outer[0], CHUNK):
                _write_all(self._master, data)
                if _SUSPEND in data:
                    self._suspend_typed.set()

    def _watch(self, suspended: Callable[[], bool]) -> None:
        """Stop with the command, if Ctrl-Z stopped it; a full-screen program may have kept it.

        Apart from `_type`, so that no key waits for the answer.
        """
        while self._suspend_typed.wait():
            self._suspend_typed.clear()
            until = time.monotonic() + _STOP_SECONDS
            while time.monotonic() < until:
                if suspended():
                    self._suspend()
                    break
                time.sleep(_STOP_SECONDS / 100)

    def _suspend(self) -> None:
        """The command stopped itself on Ctrl-Z: so do we, and both go on together."""
        self._restore()
        # To this very thread, so that it does not run on into the next line before it stops.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        self._make_raw()
        self.resize()

    def _make_raw(self) -> None:
        with self._settings:
            if not self._closed:
                tty.setraw(self._outer[0], termios.TCSADRAIN)
                self.raw = True

    def _restore(self, when: int = termios.TCSADRAIN) -> None:
        if self._saved is not None:
            self.raw = False
            termios.tcsetattr(self._outer[0], when, self._saved)  # type: ignore[arg-type]


def _pass_through(descriptor: int) -> None:
    """Leave line ends alone: the user's own terminal, which is not raw, sees to them."""
    settings = termios.tcgetattr(descriptor)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
