"""What CI runs: every test, and those of a cluster on a machine that can start one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _ci(directory: Path, lacking: str, make: str = "true") -> tuple[int, list[str], str]:
    """Run it beside programs that note their calls: its exit code, the calls, its words."""
    (directory / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", directory / ".ci/run")
    _program(directory / ".venv/bin/python", lacking)
    _program(directory / "bin/make", f'echo "$@" >>"{directory}/calls"; {make}')
    done = subprocess.run(
        [directory / ".ci/run"], capture_output=True, text=True, check=False,
        env={"PATH": f"{directory}/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    return done.returncode, (directory / "calls").read_text().split("\n")[:-1], done.stdout


def test_ci_tests_a_cluster_where_one_can_be_started(tmp_path: Path) -> None:
    code, calls, _ = _ci(tmp_path, "exit 0")
    assert (code, calls) == (0, ["test", "test-cluster"])


def test_ci_says_why_a_machine_starts_no_cluster(tmp_path: Path) -> None:
    code, calls, said = _ci(tmp_path, "echo Go is not installed; exit 3")
    assert (code, calls) == (0, ["test"])
    assert "Go is not installed" in said


@pytest.mark.parametrize(
    ("lacking", "make"),
    [("exit 1", "true"), ("exit 0", '[ "$1" = test ]'), ("exit 0", '[ "$1" = test-cluster ]')],
    ids=["it cannot be asked", "a test of the cluster fails", "another test fails"],
)
def test_ci_fails_when_something_failed(tmp_path: Path, lacking: str, make: str) -> None:
    assert _ci(tmp_path, lacking, make)[0] != 0


def test_a_machine_without_go_lacks_it_and_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.cluster", "lacking"], cwd=ROOT,
        capture_output=True, text=True, check=False,
        env={"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "Go is not installed\n")
