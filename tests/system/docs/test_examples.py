"""The policies of examples/ are valid, and grant what their comments say (I10)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import jsonschema
import pytest

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.host import presets
from keyhole.policy.reference import json_schema
from tests.rigs.cli.terminals import PROGRAM

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))
SAID = re.compile(r"^# (allowed|denied): (.+)$", re.MULTILINE)
VALUE = "made-up-for-this-test-0123456789"

pytestmark = pytest.mark.outside


def keyhole(home: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words],
        cwd=home / "project", env={"PATH": os.environ["PATH"], "HOME": str(home)},
        input=stdin, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path


def named(path: Path) -> str:
    return path.stem


def test_there_are_ten_and_the_page_lists_them() -> None:
    page = (EXAMPLES[0].parent / "README.md").read_text("utf-8")
    listed = re.findall(r"^\| \[([\w-]+\.toml)\]\(\1\) \|", page, re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES]
    assert len(listed) == 10


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_it_is_valid_without_a_note(home: Path, path: Path) -> None:
    ran = keyhole(home, "check", str(path))
    assert ran.returncode == 0, ran.stderr
    assert "note:" not in ran.stdout
    schema = json_schema(FileCatalogue(), presets.NAMES)
    jsonschema.validate(tomllib.loads(path.read_text("utf-8")), schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_it_grants_what_its_comments_say(home: Path, path: Path) -> None:
    said = SAID.findall(path.read_text("utf-8"))
    assert "denied" in {verdict for verdict, _ in said}
    for verdict, target in said:
        ran = keyhole(home, "why", "--policy", str(path), *shlex.split(target))
        assert ran.stdout.startswith(f"{verdict}  "), (target, ran.stdout, ran.stderr)
        assert ran.returncode == int(verdict == "denied")


@pytest.mark.parametrize("name", ["offline", "budget", "company", "private-packages"])
def test_a_command_runs_under_it(home: Path, name: str) -> None:
    """Those whose secrets a test can make up."""
    (source,) = (path for path in EXAMPLES if path.stem == name)
    (home / "project" / "keyhole.toml").write_text(source.read_text("utf-8"))
    (home / ".secrets").mkdir(mode=0o700)
    (home / ".secrets" / "billing").write_text(VALUE)
    (home / ".secrets" / "billing").chmod(0o600)
    for secret in ("openrouter", "packages"):
        keyhole(home, "secret", "set", secret, "--plain", stdin=VALUE)
    ran = keyhole(home, "run", "--trust", "--", "sh", "-c", "echo here; env")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("here\n")
    assert VALUE not in ran.stdout


def test_the_policy_for_ci_lies_above_the_checkout_that_it_shows(home: Path) -> None:
    (source,) = (path for path in EXAMPLES if path.stem == "ci")
    (home / "project" / "ci.toml").write_text(source.read_text("utf-8"))
    (home / "project" / "widgets").mkdir()
    (home / ".secrets").mkdir(mode=0o700)
    (home / ".secrets" / "openai").write_text(VALUE)
    (home / ".secrets" / "openai").chmod(0o600)
    command = "cd widgets && keyhole run --trust --policy ../ci.toml -- sh -c 'ls ..; touch made'"
    ran = subprocess.run(
        ["/bin/sh", "-c", command.replace("keyhole", PROGRAM)],
        cwd=home / "project", env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "widgets\n"
    assert (home / "project" / "widgets" / "made").is_file()
