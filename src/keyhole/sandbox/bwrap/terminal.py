"""The command's standard input, output and error, and the relay between them and the user's.

The user's terminal is never passed in: the command gets a fresh pty, because code that holds the
user's own could type into the shell behind it. Anonymous pipes and /dev/null are passed; anything
else is relayed by pipes. A socket would reach the host's network. A file could be opened again as
/proc/self/fd/N, and then be written where it was given for reading, or read where it was given for
writing.
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

from keyhole.sandbox.handover import StandardStreams
from keyhole.sandbox.keyboard import Keyboard
from keyhole.sandbox.screen_modes import ScreenModes
from keyhole.sandbox.soft_reset import SoftReset

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 65536
_SUSPEND = b"\x1a"
_DEVICE_NULL = os.makedev(1, 3)
_STOP_SECONDS = 2.0
"""How long after Ctrl-Z a command may take to stop; a busy host takes a moment."""
_DRAIN_SECONDS = 5.0
"""How long to wait for output in flight after the sandbox has ended."""


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
        self._modes = ScreenModes()
        self._closed = False
        self._master = self._slave = -1
        if self._terminals:
            self._master, self._slave = pty.openpty()
            self.resize()
            if not self.interactive:
                _pass_through(self._slave)
        self.streams = StandardStreams(
            *(self._inner_end(i, fd) for i, fd in enumerate(self._outer))
        )

    @property
    def raw(self) -> bool:
        """Whether the user's terminal is in raw mode, in which a line needs a carriage return."""
        return self._keyboard is not None and self._keyboard.raw

    @property
    def occupied(self) -> bool:
        """Whether a program inside has the alternate screen, or reads single keys.

        On Linux the pty's outer end tells the settings of the inner one.
        """
        if self._closed or self._master < 0:
            return False
        if self._modes.alternate:
            return True
        try:
            return not termios.tcgetattr(self._master)[3] & termios.ICANON
        except termios.error:
            return False

    def start(self, suspended: Callable[[], bool]) -> None:
        """Begin to relay, once the helper has its ends. `suspended` says whether the command has
        stopped."""
        for descriptor in {self._slave, *self._inner} - {-1}:
            os.close(descriptor)
        for thread in self._threads:
            thread.start()
        if self._master < 0:
            return
        keyboard = self._keyboard
        if keyboard is not None:
            # Before the first output comes: the pty has already converted its line ends.
            keyboard.take()
        shown = next(fd for fd in (*self._outer[1:], self._outer[0]) if os.isatty(fd))
        self._begin(self._copy, self._master, shown, self._passed, drains=True)
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
        """Wait for the last output, and restore the terminal."""
        for thread in self._threads:
            # A set-up that failed has never started them.
            if getattr(thread, "drains", False) and thread.ident is not None:
                thread.join(_DRAIN_SECONDS)
        # The terminal's answer to a last question of the command must not be read by the shell, and
        # a string that the command left open must not swallow our own lines.
        if self._keyboard is not None:
            self._keyboard.close()
        self._write(self._reset.sequence())
        self._closed = True

    def make_room(self) -> None:
        """Move the cursor to a new line, so that a message can be read after the command's
        output."""
        self._write(self._reset.room())

    def _passed(self, data: bytes) -> None:
        self._reset.passed(data)
        self._modes.passed(data)

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
        # A pty without a user returns EIO, a closed pipe EPIPE: both end the copy.
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
        """Stop with the command, if Ctrl-Z stopped it; a full-screen program may handle the key
        itself.

        In a thread of its own, so that `_type` delays no key.
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
    """Leave line ends unchanged: the user's own terminal, which is not raw, converts them."""
    settings = termios.tcgetattr(descriptor)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
