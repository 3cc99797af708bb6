"""What is believed of the host, and what is not: the sandbox could have put it there (I11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.host.host_environment import HostEnvironment
from keyhole.host.settings_file import MAX_FILE
from tests.rigs.host.building import host, program, write


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / ".venv" / "bin").mkdir(parents=True)
    return tmp_path / "project"


def on_path(*entries: Path | str, writable: tuple[Path, ...] = ()) -> HostEnvironment:
    return HostEnvironment(
        {"PATH": ":".join(map(str, entries))}, Path("/nowhere"), writable=writable
    )


# ── programs ─────────────────────────────────────────────────────────────────────────────────────


def test_the_first_program_on_the_path_is_found(tmp_path: Path) -> None:
    first = program(tmp_path / "a" / "npm", "")
    program(tmp_path / "b" / "npm", "")
    assert on_path(tmp_path / "a", tmp_path / "b").program("npm") == first


def test_a_program_that_the_sandbox_can_write_is_passed_over(tmp_path: Path, project: Path) -> None:
    fake = program(project / ".venv" / "bin" / "npm", "")
    real = program(tmp_path / "bin" / "npm", "")
    path = (fake.parent, real.parent)
    assert on_path(*path, writable=(project,)).program("npm") == real
    assert on_path(*path).program("npm") == fake  # control: it is the first on the path


def test_a_link_into_a_writable_tree_is_passed_over(tmp_path: Path, project: Path) -> None:
    fake = program(project / "npm", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "npm").symlink_to(fake)
    assert on_path(tmp_path / "bin", writable=(project,)).program("npm") is None
    assert on_path(tmp_path / "bin").program("npm") == tmp_path / "bin" / "npm"


def test_a_link_through_a_writable_tree_is_passed_over(tmp_path: Path, project: Path) -> None:
    """It ends outside today; whoever can write the middle decides where it ends tomorrow."""
    real = program(tmp_path / "bin" / "npm", "")
    (project / "hop").symlink_to(real.parent)
    (tmp_path / "shortcut").symlink_to(project / "hop")
    assert on_path(tmp_path / "shortcut", writable=(project,)).program("npm") is None
    assert on_path(tmp_path / "shortcut").program("npm") == tmp_path / "shortcut" / "npm"


def test_a_writable_tree_is_known_by_any_of_its_names(tmp_path: Path, project: Path) -> None:
    fake = program(project / "npm", "")
    (tmp_path / "alias").symlink_to(project)
    assert on_path(fake.parent, writable=(tmp_path / "alias",)).program("npm") is None


@pytest.mark.parametrize("entry", ["", ".", "bin", "~/bin"])
def test_an_entry_that_means_the_current_directory_is_passed_over(
    entry: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(project / "bin" / "npm", "")
    program(project / "npm", "")
    monkeypatch.chdir(project)
    assert on_path(entry).program("npm") is None
    assert on_path(project / "bin").program("npm") is not None


def test_what_is_not_an_executable_file_is_no_program(tmp_path: Path) -> None:
    write(tmp_path / "a" / "npm", "text")
    (tmp_path / "b" / "npm").mkdir(parents=True)
    assert on_path(tmp_path / "a", tmp_path / "b").program("npm") is None


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_is_what_the_program_prints(tmp_path: Path) -> None:
    tell = program(tmp_path / "bin" / "tell", 'echo "$HOME $LANG $OWN $PATH"')
    asked = on_path(tmp_path / "bin", "/bin").ask(tell, env={"OWN": "set", "HOME": "/elsewhere"})
    assert asked == f"/nowhere C set {tmp_path}/bin:/bin\n"


def test_a_failure_is_no_answer_but_may_be_heard_as_a_complaint(tmp_path: Path) -> None:
    fails = program(tmp_path / "fails", "echo out; echo why >&2; exit 1")
    assert on_path("/bin").ask(fails) is None
    assert on_path("/bin").ask(fails, complaint=True) == "why\n"


def test_the_path_given_on_has_no_entry_of_the_sandbox(tmp_path: Path, project: Path) -> None:
    tell = program(tmp_path / "tell", 'echo "$PATH"')
    path = (project / ".venv" / "bin", "/bin", ".")
    assert on_path(*path, writable=(project,)).ask(tell) == "/bin\n"


def test_an_interpreter_that_the_path_chooses_is_chosen_with_the_same_care(
    tmp_path: Path, project: Path
) -> None:
    """npm begins with `#!/usr/bin/env node`; a link named node would lead into the project."""
    npm = write(tmp_path / "bin" / "npm", "#!/usr/bin/env node\n")
    npm.chmod(0o755)
    evil = program(project / "node", "echo evil")
    (tmp_path / "bin" / "node").symlink_to(evil)
    program(tmp_path / "late" / "node", "echo good")
    path = (tmp_path / "bin", tmp_path / "late", "/bin")
    assert on_path(*path, writable=(project,)).ask(npm) == "good\n"
    assert on_path(*path).ask(npm) == "evil\n"  # control: the link is found first


def test_a_script_whose_interpreter_is_the_sandboxes_is_not_run(
    tmp_path: Path, project: Path
) -> None:
    evil = program(project / "sh", "echo evil")
    script = write(tmp_path / "script", f"#!{evil}\n")
    script.chmod(0o755)
    assert on_path("/bin", writable=(project,)).ask(script) is None
    assert on_path("/bin").ask(script) == "evil\n"


def test_a_program_of_the_sandbox_is_not_asked_by_any_way(tmp_path: Path, project: Path) -> None:
    fake = program(project / "npm", "echo evil")
    assert on_path("/bin", writable=(project,)).ask(fake) is None
    assert on_path("/bin").ask(fake) == "evil\n"


def test_a_settings_file_of_the_sandbox_is_not_passed_on_by_a_variable(
    tmp_path: Path, project: Path
) -> None:
    tell = program(tmp_path / "tell", 'echo "$SETTINGS"')
    env = {"SETTINGS": str(project / "rc")}
    assert on_path("/bin", writable=(project,)).ask(tell, env=env) == "\n"
    assert on_path("/bin").ask(tell, env=env) == f"{project}/rc\n"


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_read_unless_the_sandbox_can_write_it(tmp_path: Path, project: Path) -> None:
    inside = write(project / "rc", "hostile")
    (tmp_path / "link").symlink_to(inside)
    outside = write(tmp_path / "rc", "\ufeffmine")
    here = host(tmp_path, writable=(project,))
    assert here.read(outside) == "mine"
    assert here.read(inside) is None
    assert here.read(tmp_path / "link") is None
    assert host(tmp_path).read(tmp_path / "link") == "hostile"


def test_a_path_without_a_beginning_or_an_end_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    here = host(tmp_path)
    assert here.trusts(tmp_path / "c")
    assert not here.trusts(tmp_path / "a")
    assert not here.trusts(Path("etc/passwd"))


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    write(tmp_path / "full", "x" * MAX_FILE)
    write(tmp_path / "over", "x" * (MAX_FILE + 1))
    here = host(tmp_path)
    assert here.read(tmp_path / "fifo") is None
    assert here.read(tmp_path) is None
    assert here.read(tmp_path / "over") is None
    assert here.read(tmp_path / "nothing") is None
    assert len(here.read(tmp_path / "full") or "") == MAX_FILE


def test_paths_are_shown_as_a_person_writes_them(tmp_path: Path) -> None:
    here = host(tmp_path)
    assert here.shown(here.home / ".npmrc") == "~/.npmrc"
    assert here.shown(here.at("/etc/pip.conf")) == "/etc/pip.conf"
    assert here.shown(Path("/opt/x")) == "/opt/x"
    assert here.expand("~/x") == here.home / "x"


def test_configuration_directories_are_absolute_or_the_usual_ones(tmp_path: Path) -> None:
    usual = host(tmp_path, env={"XDG_CONFIG_HOME": "here", "XDG_CONFIG_DIRS": "there:"})
    assert usual.config_home() == usual.home / ".config"
    assert usual.config_dirs() == (usual.at("/etc/xdg"),)
    chosen = host(tmp_path, env={"XDG_CONFIG_HOME": "/a", "XDG_CONFIG_DIRS": "/b:/c"})
    assert (chosen.config_home(), chosen.config_dirs()) == (Path("/a"), (Path("/b"), Path("/c")))


def test_the_environment_is_not_shown(tmp_path: Path) -> None:
    assert "token" not in repr(host(tmp_path, env={"SECRET": "token"}))
