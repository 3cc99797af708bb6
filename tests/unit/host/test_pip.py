"""pip's settings, read the way pip reads them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.host import pip
from keyhole.host.preset_draft import PresetDraft
from tests.rigs.host.building import host, program, write

if TYPE_CHECKING:
    from keyhole.host.host_environment import HostEnvironment


def conf(name: str, section: str = "global") -> str:
    return f"[{section}]\nindex-url = https://{name}.corp.example/simple\n"


def main(surroundings: HostEnvironment) -> tuple[str, str] | None:
    found = pip.indexes(PresetDraft("python", surroundings)).main
    return (found.url, found.where) if found else None


def test_nothing_set_is_nothing_found(tmp_path: Path) -> None:
    assert main(host(tmp_path)) is None


@pytest.mark.parametrize(
    "strongest",
    [
        ["/etc/xdg/pip/pip.conf"],
        ["/etc/xdg/pip/pip.conf", "/etc/pip.conf"],
        ["/etc/pip.conf", "~/.pip/pip.conf"],
        ["~/.pip/pip.conf", "~/.config/pip/pip.conf"],
        ["/etc/pip.conf", "~/.config/pip/pip.conf"],
    ],
)
def test_a_stronger_file_wins(tmp_path: Path, strongest: list[str]) -> None:
    texts = {path: conf(f"host{number}") for number, path in enumerate(strongest)}
    home = {p[2:]: text for p, text in texts.items() if p.startswith("~/")}
    system = {p: text for p, text in texts.items() if p.startswith("/")}
    number = len(strongest) - 1
    assert main(host(tmp_path, home=home, system=system)) == (
        f"https://host{number}.corp.example/simple",
        strongest[-1],
    )


def test_a_variable_is_stronger_than_any_file(tmp_path: Path) -> None:
    env = {"PIP_INDEX_URL": "https://variable.corp.example/simple"}
    here = host(tmp_path, home={".pip/pip.conf": conf("file")}, env=env)
    assert main(here) == ("https://variable.corp.example/simple", "PIP_INDEX_URL")


def test_the_section_of_install_is_stronger_than_global_even_of_a_stronger_file(
    tmp_path: Path,
) -> None:
    system = {"/etc/pip.conf": conf("install", "install")}
    here = host(tmp_path, home={".pip/pip.conf": conf("global")}, system=system)
    assert main(here) == ("https://install.corp.example/simple", "/etc/pip.conf")


def test_a_file_named_by_a_variable_stands_in_for_the_users(tmp_path: Path) -> None:
    chosen = write(tmp_path / "chosen.conf", conf("chosen"))
    host(tmp_path, home={".pip/pip.conf": conf("user")}, system={"/etc/pip.conf": conf("system")})
    named = host(tmp_path, env={"PIP_CONFIG_FILE": str(chosen)})
    assert main(named) == ("https://chosen.corp.example/simple", str(chosen))
    empty = host(tmp_path, env={"PIP_CONFIG_FILE": str(write(tmp_path / "empty", ""))})
    assert main(empty) == ("https://system.corp.example/simple", "/etc/pip.conf")
    missing = host(tmp_path, env={"PIP_CONFIG_FILE": "/missing"})
    assert main(missing) == ("https://user.corp.example/simple", "~/.pip/pip.conf")
    off = host(tmp_path, env={"PIP_CONFIG_FILE": "/dev/null"})
    assert main(off) is None


def test_several_urls_and_other_spellings_of_a_key_are_read(tmp_path: Path) -> None:
    text = (
        "[global]\nExtra_Index_URL =\n  https://a.corp.example/simple\n"
        "  https://b.corp.example/simple\nindex-url =\n"
        "[download]\n--find-links = https://c.corp.example/page.html /opt/wheels\n"
    )
    found = pip.indexes(PresetDraft("python", host(tmp_path, home={".pip/pip.conf": text})))
    assert [i.url for i in found.extra] == [
        "https://a.corp.example/simple", "https://b.corp.example/simple",
    ]  # fmt: skip
    assert [i.url for i in found.links] == ["https://c.corp.example/page.html", "/opt/wheels"]
    assert found.main is None


def test_a_broken_file_is_passed_over(tmp_path: Path) -> None:
    system = {"/etc/pip.conf": conf("system")}
    broken = host(tmp_path, home={".pip/pip.conf": "index-url = x\n"}, system=system)
    assert main(broken) == ("https://system.corp.example/simple", "/etc/pip.conf")


def test_settings_of_an_environment_that_the_sandbox_can_write_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "project" / ".venv" / "pip.conf", conf("hostile"))
    env = {"VIRTUAL_ENV": str(tmp_path / "project" / ".venv")}
    assert main(host(tmp_path, env=env, writable=(tmp_path / "project",))) is None
    assert main(host(tmp_path, env=env)) is not None  # control: elsewhere they do


def test_settings_in_the_current_directory_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    write(project / "pip.conf", conf("hostile"))
    monkeypatch.chdir(project)
    for env in ({}, {"PIP_CONFIG_FILE": "pip.conf"}, {"VIRTUAL_ENV": "."}):
        assert main(host(tmp_path, env=env)) is None
    named = host(tmp_path, env={"PIP_CONFIG_FILE": str(project / "pip.conf")})
    assert main(named) is not None  # control: the file would be understood


# ── the default ──────────────────────────────────────────────────────────────────────────────────


SPEC = importlib.util.find_spec("pip")
OWN = (Path(SPEC.origin).parent.parent,) if SPEC and SPEC.origin else ()
"""Where the pip of the interpreter that runs the tests is, if it has one."""


def fake_python(directory: Path, *said: object) -> Path:
    return program(directory / "python3", f"echo '{json.dumps(said)}'").parent


def test_the_default_is_the_one_that_pip_itself_names(tmp_path: Path) -> None:
    """Compared with pip's own help, which prints it."""
    if not OWN:
        pytest.skip("Keyhole's interpreter has no pip")
    found = pip.builtin(host(tmp_path))
    run = [sys.executable, "-I", "-m", "pip", "--isolated", "install", "--help"]
    said = subprocess.run(run, capture_output=True, text=True, check=True, env={"COLUMNS": "999"})
    assert found is not None
    assert f"(default {found.index})" in said.stdout
    assert "." in found.files


def test_without_a_pip_that_may_be_believed_another_python_is_asked(tmp_path: Path) -> None:
    """`python -m keyhole` in a project with a `pip` package would import that one."""
    path = fake_python(tmp_path / "bin", "https://index.corp.example/simple", "files.corp.example")
    wary = host(tmp_path, env={"PATH": f"{path}:/bin"}, writable=OWN)
    assert pip.builtin(wary) == pip.BuiltinIndex(
        "https://index.corp.example/simple", "files.corp.example"
    )
    if OWN:
        unwary = host(tmp_path, env={"PATH": f"{path}:/bin"})
        assert pip.builtin(unwary) != pip.builtin(wary)  # control: else its own is taken


def test_a_pip_that_has_no_default_to_tell_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pip, "_INDEX_MODULE", "pip._internal.nothing")
    assert pip.builtin(host(tmp_path)) is None


@pytest.mark.parametrize("said", [("https://a.example/",), (1, 2), ("a", None)])
def test_an_answer_of_another_shape_is_none(tmp_path: Path, said: tuple[object, ...]) -> None:
    path = fake_python(tmp_path / "bin", *said)
    assert pip.builtin(host(tmp_path, env={"PATH": f"{path}:/bin"}, writable=OWN)) is None
