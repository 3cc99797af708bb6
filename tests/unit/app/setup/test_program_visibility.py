"""The advice about a program that did not start (I1, I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.setup.agent_profiles import FileProfiles
from keyhole.app.setup.program_visibility import explain_hidden, explain_missing
from keyhole.host.host_environment import HostEnvironment
from keyhole.sandbox.files.mount_plan import Bind, MountKind
from keyhole.sandbox.launch import Launch, ResourceLimits
from tests.rigs.host.building import host, program, write
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from pathlib import Path


def advice(tmp_path: Path, command: str, *, writable: bool = True) -> str:
    project = str(tmp_path / "home/project")
    shown = (Bind(project, project, MountKind.DIR, writable=writable),)
    bounds = ResourceLimits(1, 1)
    launch = Launch((command,), project, {"PATH": ""}, shown, bounds, 0, 0, "", "", "")
    return "\n".join(explain_hidden(launch, loaded("").policy.sandbox, host(tmp_path)))


def test_only_programs_are_named_in_the_advice(tmp_path: Path) -> None:
    """The sandbox can leave a first line or a link that names any file of the person's."""
    home = tmp_path / "home"
    diary = write(home / "documents/diary", "private")
    tool = program(home / "tools/python", "")
    script = write(home / "project/build.sh", f"#!{tool}\n")
    script.chmod(0o755)
    assert "readable" in advice(tmp_path, "./build.sh")
    script.write_text(f"#!{diary}\n")
    assert advice(tmp_path, "./build.sh") == ""
    script.write_text(f"#!{tool}\0\n")
    assert advice(tmp_path, "./build.sh") == ""
    for target, said in ((tool, True), (diary, False)):
        script.unlink()
        script.symlink_to(target)
        assert ("readable" in advice(tmp_path, "./build.sh")) is said


def test_a_sandbox_cannot_have_any_program_of_the_host_shown(tmp_path: Path) -> None:
    """I1: beside it lie private files. Control: a link that no sandbox could write is followed, and
    so is an interpreter's."""
    home = tmp_path / "home"
    tool = program(home / "private/tool", "")
    script = write(home / "project/build", f"#!{tool}\n")
    script.chmod(0o755)
    for _ in range(2):
        assert "readable" not in advice(tmp_path, "./build")
        assert "cannot see" in advice(tmp_path, "./build")
        assert "readable" in advice(tmp_path, "./build", writable=False)
        script.unlink()
        script.symlink_to(tool)
    script.unlink()
    script.symlink_to(program(home / "versions/bin/python3.12", ""))
    assert "readable" in advice(tmp_path, "./build")


def test_a_python_of_a_virtual_environment_is_typed_by_its_own_path(tmp_path: Path) -> None:
    """By the path of the interpreter behind the link, it would not find the environment's
    packages. Control: a link from elsewhere is replaced by the program that it leads to."""
    home = tmp_path / "home"
    real = program(home / "versions/3.12/bin/python3.12", "")
    (home / "versions/3.12/lib/python3.12").mkdir(parents=True)
    write(home / "env/pyvenv.cfg", f"home = {real.parent}\n")
    (home / "env/bin").mkdir()
    (home / "env/bin/python").symlink_to(real)
    said = advice(tmp_path, f"{home}/env/bin/python")
    assert "~/env" in said
    assert "then run" not in said
    (home / "links").mkdir()
    (home / "links/tool").symlink_to(program(home / "tools/tool", ""))
    assert f"then run `keyhole run -- {home}/tools/tool`" in advice(tmp_path, f"{home}/links/tool")


def test_an_agent_that_is_not_there_is_named_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    host = HostEnvironment(env={"PATH": str(tmp_path)}, home=tmp_path, writable=())
    (line,) = explain_missing("claude", FileProfiles(), host)
    assert "Claude Code is not installed" in line
    assert "`npm install -g @anthropic-ai/claude-code`" in line
    assert explain_missing("no-agent", FileProfiles(), host) == ()
    program(tmp_path / "claude", "")
    assert explain_missing("claude", FileProfiles(), host) == ()
