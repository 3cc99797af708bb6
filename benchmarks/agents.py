"""How much later an agent starts by `keyhole run NAME` than without Keyhole.

Measured with the agent's `--version`: it starts, asks for nothing, and ends. The policy has the
agent's service with a secret, so that a gateway, a CA and a kept home are part of it. The seconds
that are added are judged, in the same run and in turns; the processor time of all processes is
beside them, since a loaded machine adds to the clock alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.players.project import make_project
from benchmarks.rounds import Row, interleave, sample

if TYPE_CHECKING:
    from collections.abc import Callable

ADDED_SECONDS = 0.5
ROUNDS = 11
SERVICES = {"claude": "anthropic", "gemini": "gemini"}
"""Agents that are measured where they are installed, and the service of each."""
JUDGED = "claude"
AGENTS = Path(".agents/node_modules/.bin")
"""Where `make setup` installs agents for tests, if there is npm."""


def measure() -> list[Row]:
    """Each agent that is installed, with and without Keyhole."""
    rows = []
    for agent, service in SERVICES.items():
        search = f"{os.environ['PATH']}:{AGENTS.absolute()}"
        if shutil.which(agent, path=search) is None:
            if agent == JUDGED:
                print(f"  {agent} is not installed: npm install -g @anthropic-ai/claude-code")
                rows.append(Row(_judged(agent), "", bound=1.0))
            continue
        rows += _measure(agent, service, search)
    return rows


def _judged(agent: str) -> str:
    return f"keyhole run {agent}: seconds added to its start, of {ADDED_SECONDS:g}"


def _measure(agent: str, service: str, search: str) -> list[Row]:
    keyhole = str(Path(sys.executable).with_name("keyhole"))
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        project, env = make_project(Path(directory))
        env["PATH"] = search
        key = Path(directory) / "home/key"
        key.write_text("made-up-for-this-measurement-0123456789")
        key.chmod(0o600)
        policy = f'version = 1\n[services.{service}]\nsecret = "file:~/key"\n'
        (project / "keyhole.toml").write_text(policy)
        command = [agent, "--version"]
        spent: dict[str, list[float]] = {"bare": [], "keyhole": []}
        subjects = {
            "bare": _timer(command, project, env, spent["bare"]),
            "keyhole": _timer([keyhole, "run", "-q", *command], project, env, spent["keyhole"]),
        }
        _timer([keyhole, "run", "--trust", *command], project, env, [])()  # the walls, once
        found = interleave(subjects, ROUNDS)
    bare, run = found["bare"], found["keyhole"]
    added = run.median - bare.median
    processor = {name: sample(taken) for name, taken in spent.items()}
    judged = agent == JUDGED
    return [
        Row(
            _judged(agent) if judged else f"keyhole run {agent}: added to its start",
            f"{added * 1e3:8.2f} ms ± {max(run.spread, bare.spread) * 1e3:.2f}",
            added / ADDED_SECONDS if judged else None,
            1.0 if judged else None,
        ),
        Row(f"  {agent} --version without Keyhole", bare.shown("ms", 1e3)),
        Row("  its processor time", processor["bare"].shown("ms", 1e3)),
        Row("  processor time with Keyhole, all processes", processor["keyhole"].shown("ms", 1e3)),
    ]


def _timer(
    command: list[str], project: Path, env: dict[str, str], spent: list[float]
) -> Callable[[], float]:
    def run() -> float:
        before, start = os.times(), time.perf_counter()
        subprocess.run(  # noqa: S603 - our own command, or the agent that is measured
            command, cwd=project, env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL
        )
        took, after = time.perf_counter() - start, os.times()
        spent.append(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )
        return took

    return run
