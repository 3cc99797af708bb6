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
import stat
import struct
import termios
import threading
import time
from typing import TYPE_CHECKING

from keyhole.sandbox.helper import Streams
from keyhole.sandbox.keyboard import Keyboard
from keyhole.sandbox.softreset import SoftReset

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 65536
_SUSPEND = b"\x1a"
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
        self._suspend_typed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._inner: list[int] = []
        self.interactive = bool(self._terminals) and os.isatty(stdin)
        self._keyboard = Keyboard(stdin) if self.interactive else None
        self._reset = SoftReset()
        self._master = self._slave = -1
        if self._terminals:
            self._master, self._slave = pty.openpty()
            self.resize()
            if not self.interactive:
                _pass_through(self._slave)
        self.streams = Streams(*(self._inner_end(i, fd) for i, fd in enumerate(self._outer)))

    @property
    def raw(self) -> bool:
        """Whether the user's terminal now wants carriage returns spelled out."""
        return self._keyboard is not None and self._keyboard.raw

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to relay, once the helper has its ends; `suspended`: did the command stop?"""
        for descriptor in {self._slave, *self._inner} - {-1}:
            os.close(descriptor)
        for thread in self._threads:
            thread.start()
        if self._master < 0:
            return
        keyboard = self._keyboard
        if keyboard is not None:
            # Before the first output comes: its line ends are already those of a terminal.
            keyboard.take()
        shown = next(fd for fd in (*self._outer[1:], self._outer[0]) if os.isatty(fd))
        self._begin(self._copy, self._master, shown, self._reset.passed, drains=True)
        if keyboard is not None:
            self._begin(self._type, keyboard)
            self._begin(self._watch, keyboard, suspended)

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
            # A set-up that failed has never started them.
            if getattr(thread, "drains", False) and thread.ident is not None:
                thread.join(_DRAIN_SECONDS)
        # An answer to a question that the command asked the terminal at the end is not for the
        # shell to read; and a string that it left open must not swallow our own lines.
        if self._keyboard is not None:
            self._keyboard.close()
        self._write(self._reset.sequence())

    def make_room(self) -> None:
        """Go to where lines can be read, whatever the command left on the screen."""
        self._write(self._reset.room())

    def _write(self, data: bytes) -> None:
        for descriptor in self._terminals[-1:]:
            with contextlib.suppress(OSError):
                _write_all(descriptor, data)

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

    def _copy(
        self, source: int, sink: int, passed: Callable[[bytes], None] = lambda _: None
    ) -> None:
        # A pty whose last user is gone answers EIO, a closed pipe EPIPE: both end the copy.
        with contextlib.suppress(OSError):
            while data := os.read(source, CHUNK):
                passed(data)
                _write_all(sink, data)
        if sink not in self._outer:
            os.close(sink)

    def _type(self, keyboard: Keyboard) -> None:
        with contextlib.suppress(OSError):
            while data := keyboard.read(CHUNK):
                _write_all(self._master, data)
                if _SUSPEND in data:
                    self._suspend_typed.set()

    def _watch(self, keyboard: Keyboard, suspended: Callable[[], bool]) -> None:
        """Stop with the command, if Ctrl-Z stopped it; a full-screen program may have kept it.

        Apart from `_type`, so that no key waits for the answer.
        """
        while self._suspend_typed.wait():
            self._suspend_typed.clear()
            until = time.monotonic() + _STOP_SECONDS
            while time.monotonic() < until:
                if suspended():
                    keyboard.suspend()
                    self.resize()
                    break
                time.sleep(_STOP_SECONDS / 100)


def _pass_through(descriptor: int) -> None:
    """Leave line ends alone: the user's own terminal, which is not raw, sees to them."""
    settings = termios.tcgetattr(descriptor)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
