"""A person, a commit hook and a forge's CI run the same checks, on the same Pythons."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from keyhole import __version__
from keyhole.system.packages import MANAGERS
from tests.rigs.lacking import give_up

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text("utf-8")


def _values(key: str, text: str) -> list[str]:
    return re.findall(rf"^ +(?:- )?{key}: (.+)$", text, re.MULTILINE)


def test_ci_runs_make_test_on_every_python_that_is_supported() -> None:
    named = (re.search(r"Python :: (3\.\d+)$", text) for text in PROJECT["classifiers"])
    versions = [found[1] for found in named if found]
    (matrix,) = _values("python", WORKFLOW)
    assert re.findall(r'"(.+?)"', matrix) == versions
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert _values("run", WORKFLOW)[-1] == "make test"


def test_the_hooks_are_the_checks_of_make_lint_and_download_nothing() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nlint:")[2].partition("\n\n")[0]
    checks = re.findall(r"\$\(BIN\)/(.+)$", recipe, re.MULTILINE)
    entries = [entry.replace(" --force-exclude", "") for entry in _values("entry", HOOKS)]
    assert len(checks) >= 4
    assert entries == [f".venv/bin/{check}" for check in checks]
    assert _values("repo", HOOKS) == ["local"]
    assert set(_values("language", HOOKS)) == {"system"}


def test_the_packages_description_has_no_link_that_needs_the_repository() -> None:
    """An index shows the text alone, and the documents are published nowhere."""
    readme = (ROOT / "README.md").read_text("utf-8")
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    text = core.readme
    assert len(re.findall(r"\]\((?!https://)", readme)) > 20
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    # Each document is named by its place, which the source distribution has.
    named = re.findall(r"`([\w./-]+\.md)`", text)
    assert "tour (`docs/tour.md`)" in text
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).is_file()] == []
    # Examples are the same, and no address is given at which nothing is.
    for block in re.findall(r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL):
        assert block in text
    assert core.urls == {}


def test_a_demo_needs_nothing_of_the_tests() -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("\nrun:")[2].partition("\n\n")[0]
    assert recipe.splitlines()[1:] == ["\t@scripts/setup run", "\t$(BIN)/keyhole demo"]
    script = (ROOT / "scripts" / "setup").read_text("utf-8")
    for word in ("nginx-light", "clients.lock", "docker.io"):
        before = script[: script.index(word)]
        assert "!= run ]; then" in before or "= run ]; then exit 0" in before, word


def test_packages_are_named_as_the_product_names_them() -> None:
    script = (ROOT / "scripts" / "setup").read_text("utf-8")
    for manager in MANAGERS.values():
        assert f"sudo {manager}$" in script


@pytest.mark.attack
def test_the_first_line_of_the_readme_installs_the_command(tmp_path: Path) -> None:
    """By uv where it is installed, and by pip: both read the same metadata."""
    readme = (ROOT / "README.md").read_text("utf-8")
    assert re.findall(r"^```sh\n(.+?)  +#", readme, re.MULTILINE)[0] == "uv tool install ."
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    installs = [[str(tmp_path / "venv" / "bin" / "pip"), "install", "-q", "."]]
    if uv := shutil.which("uv"):
        installs.append([uv, "tool", "install", "."])
    env = os.environ | {"HOME": str(tmp_path), "UV_TOOL_BIN_DIR": str(tmp_path / "uv" / "bin")}
    for command in installs:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            give_up(f"{command[0]} does not install here: {done.stderr[-500:]}")
    commands = [path for path in tmp_path.glob("*/bin/keyhole") if path.exists()]
    assert len(commands) == len(installs)
    for program in commands:
        said = subprocess.run([program, "version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"keyhole {__version__}\n"
