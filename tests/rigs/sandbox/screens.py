"""A terminal as a person has one: a pty that the test types on and reads from."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING, Any

from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tests.rigs.sandbox.projects import Project


def _as_a_terminal_starts_it() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    # A suite that was started with nohup ignores it, and so would the program.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Screen:
    """A program on a terminal of its own, as its session's leader."""

    def __init__(self, start: Callable[..., subprocess.Popen[bytes]], rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(rows, 80)
        self.before = termios.tcgetattr(self.slave)
        self.seen = ""
        self.process = start(
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=_as_a_terminal_starts_it,
        )

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)
        os.close(self.slave)

    def resize(self, rows: int, columns: int) -> None:
        """As when a window's corner is dragged; the kernel sends SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Read until the screen shows this; what came before it is forgotten."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.seen = self.seen[found.end() :]
        return found

    def wait(self) -> int:
        """The exit code; what is shown meanwhile is read, as a terminal does."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            ready, _, _ = select.select([self.master], [], [], 0.02)
            if ready:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
        self.drain()
        return self.process.returncode

    def drain(self) -> None:
        """Read what is already there."""
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536).decode(errors="replace")

    def hang_up(self) -> None:
        """As when the window is closed; the kernel sends SIGHUP."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self.master)
        os.close(nothing)

    def until_stopped(self) -> None:
        """Wait until the program is stopped, as a shell sees it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
            if pid and os.WIFSTOPPED(status):
                return
            assert not pid, f"it ended: {status}"
            assert time.monotonic() < deadline, f"it is not stopped; {self.seen!r}"
            ready, _, _ = select.select([self.master], [], [], 0.02)
            if ready:
                self.seen += os.read(self.master, 65536).decode(errors="replace")

    def go_on(self) -> None:
        """What a shell's `fg` does."""
        self.process.send_signal(signal.SIGCONT)
        self.until_raw()

    def until_raw(self) -> None:
        """Wait until keys go to the sandbox as they are; earlier ones are this terminal's own."""
        until(lambda: not self.settings[3] & termios.ICANON, told=lambda: self.seen)

    @property
    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)


@contextlib.contextmanager
def on_a_terminal(
    project: Project, *command: str, rows: int = 24, stderr: int | None = None
) -> Iterator[Screen]:
    """`keyhole run` on a terminal; `stderr` is elsewhere, if it is given."""

    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        ends |= {} if stderr is None else {"stderr": stderr}
        return project.start("run", "--trust", "--", *command, **ends)

    with Screen(start, rows) as it:
        yield it
