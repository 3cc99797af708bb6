"""The advice about a program that did not start (I1, I11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.setup.program_visibility import explain_hidden
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
