"""A project to run in, apart from the user's own settings and state."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.run.run import Run
    from keyhole.sandbox.launch import Launch

POLICY = 'version = 1\n[egress]\nallow = ["ok.example"]\n'


def make_project(directory: Path) -> tuple[Path, dict[str, str]]:
    """A project's directory and the environment to run in."""
    project, home = directory / "project", directory / "home"
    for made in (project, home):
        made.mkdir()
    (project / "keyhole.toml").write_text(POLICY)
    places = {f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE")}
    return project, {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **places}


class _Composed(Exception):
    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch


def launch_of(directory: Path, *command: str) -> Launch:
    """What `keyhole run` would launch in a new project under `directory`; this process moves in."""
    import keyhole.app.run.run as composed
    from keyhole.cli.main import main

    def stop(run: Run) -> NoReturn:
        raise _Composed(run.runtime.launch)

    project, env = make_project(directory)
    os.chdir(project)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["keyhole", "run", "--trust", "--", *command]
    composed.execute_run = stop
    try:
        main()
    except _Composed as reached:
        return reached.launch
    raise RuntimeError("`keyhole run` did not come to its launch")
