"""A terminal emulator with a screen that can be read: a tmux server of the test's own."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

ROWS, COLUMNS = 24, 220
FLAGS = (
    "alternate_on", "cursor_flag", "insert_flag", "keypad_cursor_flag", "keypad_flag",
    "mouse_any_flag", "origin_flag", "scroll_region_lower", "scroll_region_upper", "wrap_flag",
)  # fmt: skip

PROGRAM = shutil.which("tmux") or ""
"""Empty where it is not installed."""


class Emulator:
    """One screen, on which a shell script of the project's person runs to its end."""

    def __init__(self, project: Project, script: str) -> None:
        self._project = project
        home = project.home
        self._socket = home / f"tmux-{time.monotonic_ns()}"
        self._done = home / f"done-{time.monotonic_ns()}"
        path = project.write(f"../script-{time.monotonic_ns()}", script)
        # It stays, so that the screen does.
        command = f"sh {path}; touch {self._done}; sleep {PATIENCE}"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, command)

    def __enter__(self) -> Emulator:
        until(self._done.exists, told=self.lines)
        time.sleep(0.1)  # tmux reads what was written last
        return self

    def __exit__(self, *_: object) -> None:
        self._tmux("kill-server")

    def lines(self, *flags: str) -> list[str]:
        """Everything on the screen, and what scrolled off it."""
        text = self._tmux("capture-pane", "-p", "-J", "-S", "-1000", *flags)
        return [line.rstrip() for line in text.split("\n")]

    def modes(self) -> dict[str, str]:
        """How the screen is set."""
        text = self._tmux("display-message", "-p", " ".join(f"#{{{name}}}" for name in FLAGS))
        return dict(zip(FLAGS, text.split(), strict=True))

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            [PROGRAM, "-S", str(self._socket), *words],
            cwd=self._project.directory,
            env=self._project.env,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
            **self._project.person.become(),
        )
        return str(done.stdout)


def program_of(project: Project) -> Path:
    """The installed command, as the person types it."""
    return project.person.program
