"""The installed command, as a user types it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rigs.cli.terminals import PROGRAM


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Keyhole:
    """Runs `keyhole` in a project directory with a home of its own."""

    project: Path
    home: Path
    env: dict[str, str]

    def __call__(self, *words: str, stdin: str | None = None) -> Ran:
        done = subprocess.run(
            [PROGRAM, *words],
            cwd=self.project,
            env=self.env,
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def policy(self, text: str) -> None:
        (self.project / "keyhole.toml").write_text("version = 1\n" + text)


@pytest.fixture
def keyhole(tmp_path: Path) -> Keyhole:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    return Keyhole(project, home, env)
