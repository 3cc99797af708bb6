"""Ctrl-C on a terminal while a verb starts its processes: it ends them all, and prints nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.rigs.cli.terminals import PROGRAM
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from tests.system.cli.conftest import Keyhole

pytestmark = pytest.mark.outside

INTERRUPTED = 130


def children(pid: int) -> list[int]:
    """The processes that it has started."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.08])
@pytest.mark.parametrize("words", [("up", "--foreground"), ("doctor",)])
def test_ctrl_c_prints_nothing_and_leaves_nothing(
    keyhole: Keyhole, words: tuple[str, ...], delay: float
) -> None:
    runtime = keyhole.home / "run"
    runtime.mkdir(mode=0o700)
    process = subprocess.Popen(
        [PROGRAM, *words],
        cwd=keyhole.project,
        env=keyhole.env | {"XDG_RUNTIME_DIR": str(runtime)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        until(lambda: children(process.pid))
        started = children(process.pid)
        time.sleep(delay)  # another moment of the child's start, not a wait for anything
        os.killpg(process.pid, signal.SIGINT)
        # Its end is everybody's who could still write.
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert said.decode() == ""
    # A gateway whose loop runs already was told to end, and does.
    ended = {INTERRUPTED, 0} if words[0] == "up" else {INTERRUPTED}
    assert process.returncode in ended
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
