"""The user's terminal as a keyboard: raw mode, and job control.

Used by `terminal.py` and `containers/console.py`. A shell stops a background job that changes the
terminal's settings or reads from it. So this touches the terminal only while Keyhole's process
group is in the foreground; a run that was started with `&` goes on, and takes the terminal when the
person types `fg`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
import time
import tty

BACKGROUND_SECONDS = 0.1
"""Seconds between two checks whether a background job was brought to the foreground: a shell does
not signal a job that already runs."""


class Keyboard:
    """A terminal that is raw while the command reads from it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._saved: list[object] | None = None
        self._lock = threading.Lock()
        self._paused = False
        self._closed = False
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.raw = False
        """Whether the terminal is in raw mode, in which a line needs a carriage return."""

    def take(self) -> bool:
        """Make the terminal raw, unless this is a background job. Returns whether it may be
        read."""
        with self._lock:
            if self._closed or self._paused or not self._in_foreground():
                return False
            if not self.raw:
                try:
                    if self._saved is None:
                        self._saved = termios.tcgetattr(self._descriptor)
                    tty.setraw(self._descriptor, termios.TCSADRAIN)
                except termios.error:
                    self._closed = True  # its window was closed
                    return False
                self.raw = True
            return True

    def read(self, size: int) -> bytes:
        """The next typed bytes, once this is a foreground job; empty at the end."""
        poll = select.poll()
        for each in (self._descriptor, self._woken):
            poll.register(each, select.POLLIN)
        while not self._closed:
            if not self.take():
                time.sleep(BACKGROUND_SECONDS)
                continue
            # Unlike a read, a poll does not stop a job that has moved to the background meanwhile.
            if any(descriptor == self._woken for descriptor, _ in poll.poll()):
                os.eventfd_read(self._woken)
            elif self._in_foreground():
                return os.read(self._descriptor, size)
        return b""

    def suspend(self) -> None:
        """Restore the terminal and stop this process; returns when the person continues it."""
        with self._lock:
            self._paused = True
            self._give_back(termios.TCSADRAIN)
        # To this very thread, so that it stops before it executes the next line.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        with self._lock:
            self._paused = False
        self.take()
        os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Restore the terminal, and drop input that was not read."""
        with self._lock:
            self._closed = True  # a thread that wakes from Ctrl-Z only now changes nothing
            self._give_back(termios.TCSAFLUSH)
        os.eventfd_write(self._woken, 1)

    def _give_back(self, when: int) -> None:
        if self.raw and self._saved is not None:
            self.raw = False
            if self._in_foreground():
                # A terminal whose window was closed has nothing to restore.
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self._descriptor, when, self._saved)  # type: ignore[arg-type]

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:
            return True  # not the controlling terminal of this process: job control is not for it
