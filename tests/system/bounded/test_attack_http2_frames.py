"""Fuzzers of HTTP/2, guided by coverage, for as long as FUZZ says: `make attack FUZZ=2h` (I4, I9).

Each side by itself, and each against python-hyper's h2. By themselves they run for 20 seconds each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.durations import seconds_of
from tests.rigs.http.http2_fuzzing import TARGETS, seeds
from tests.rigs.lacking import give_up
from tests.rigs.waiting import PATIENCE

pytestmark = pytest.mark.attack

ATHERIS = "atheris==3.0.0"
DEFAULT = "20s"
LONGEST_INPUT = 1200
ROOT = Path(__file__).parents[3]
FUZZER = ROOT / "tests/rigs/http/http2_atheris.py"
CONTROL = "control"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with atheris."""
    directory = tmp_path_factory.mktemp("atheris")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*words, "--only-binary=:all:", "--target", str(directory), ATHERIS],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if done.returncode:
        give_up(f"{ATHERIS} does not install here: {done.stderr[-500:]}")
    return directory


def fuzz(packages: Path, directory: Path, target: str, length: float) -> tuple[int, str]:
    """The exit code of a fuzzer, and what it said."""
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds() if target != CONTROL else ()):
        (corpus / str(number)).write_bytes(seed)
    done = subprocess.run(
        [
            sys.executable, str(FUZZER), target,
            f"-max_total_time={length:.0f}", f"-max_len={LONGEST_INPUT}", "-verbosity=0",
            f"-artifact_prefix={directory}/", str(corpus),
        ],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{packages}"}, cwd=directory,
        capture_output=True, text=True, errors="replace", check=False,
        timeout=length + 10 * PATIENCE,
    )  # fmt: skip
    found = [path.read_bytes().hex() for path in directory.glob("crash-*")]
    return done.returncode, f"{done.stdout}{done.stderr}"[-4000:] + f"\ninput: {found}"


@pytest.mark.parametrize("target", [name for name in TARGETS if name != CONTROL])
def test_no_input_is_found_that_a_machine_reads_wrongly(
    packages: Path, tmp_path: Path, target: str
) -> None:
    code, said = fuzz(packages, tmp_path, target, seconds_of("FUZZ", DEFAULT))
    assert code == 0, said


def test_the_fuzzer_finds_what_there_is_to_find(packages: Path, tmp_path: Path) -> None:
    """The control: from nothing, it finds a request with a body."""
    code, said = fuzz(packages, tmp_path, CONTROL, 60)
    assert code != 0
    assert "a request with a body" in said


@pytest.mark.parametrize("target", [name for name in TARGETS if name != CONTROL])
def test_the_first_inputs_are_read_rightly(target: str) -> None:
    for seed in seeds():
        TARGETS[target](seed)
