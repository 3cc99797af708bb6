"""A terminal of 24 rows that a test types on and reads from: a tmux server of its own."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from tests.rigs.lacking import give_up
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rigs.sandbox.projects import Project

PROGRAM = shutil.which("tmux") or ""


class TmuxScreen:
    """One program on a screen."""

    def __init__(self, project: Project, command: str, env: dict[str, str] | None = None) -> None:
        if not PROGRAM:
            give_up("there is no tmux here")
        self._project = project
        self._env = project.env | {"TERM": "xterm-256color"} | (env or {})
        self._socket = project.home / f"tmux-{time.monotonic_ns()}"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", command)

    def text(self, *flags: str) -> str:
        """What the screen shows."""
        return self.tmux("capture-pane", "-p", *flags)

    def until(self, text: str) -> None:
        """Wait until the screen shows this."""
        until(lambda: text in self.text(), pause=0.05, told=lambda: f"no {text!r} in {self.text()}")

    def until_gone(self, text: str) -> None:
        """Wait until the screen shows this no more."""
        until(lambda: text not in self.text(), pause=0.05, told=self.text)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names."""
        self.tmux("send-keys", *keys)

    def tmux(self, *words: str) -> str:
        done = subprocess.run(
            [PROGRAM, "-S", str(self._socket), *words],
            cwd=self._project.directory,
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
            **self._project.person.become(),
        )
        return str(done.stdout)


@contextlib.contextmanager
def tmux_screen(
    project: Project, *words: str, env: dict[str, str] | None = None
) -> Iterator[TmuxScreen]:
    """`keyhole WORDS` on a screen while the block lasts; the screen stays when it ends."""
    command = shlex.join([str(project.person.program), *words])
    made = TmuxScreen(project, f"{command}; echo ended $?; sleep {PATIENCE}", env)
    try:
        yield made
    finally:
        made.tmux("kill-server")
