"""The exit code is the command's, as a shell tells it; 125 when Keyhole itself did not run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

MARK = "touch ran"


def test_the_exit_code_is_the_commands(project: Project) -> None:
    assert project.shell("exit 0").code == 0
    assert project.shell("exit 42").code == 42


def test_a_command_ended_by_a_signal_is_128_and_its_number(project: Project) -> None:
    assert project.shell("kill -KILL $$").code == 128 + 9
    assert project.shell("kill -TERM $$").code == 128 + 15


def test_a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126(
    project: Project,
) -> None:
    missing = project.run("no-such-program")
    assert missing.code == 127
    assert "no-such-program: not found" in missing.err
    project.write("plain", "not a program")
    unable = project.run("./plain")
    assert unable.code == 126
    assert "./plain: Permission denied" in unable.err


def test_125_without_a_policy_with_one_that_is_not_accepted_and_with_a_faulty_one(
    project: Project,
) -> None:
    """I3: and nothing has run; the same command runs once the policy is accepted."""
    command = ("sh", "-c", MARK)
    ran = project.directory / "ran"

    said = project("run", "--", *command)
    assert said.code == 125
    assert "--trust" in said.err
    said = project("run", "--trust=sha256:" + 64 * "0", "--", *command)
    assert said.code == 125
    project.policy("[egres]\nallow = []\n")
    said = project.run(*command)
    assert said.code == 125
    assert "keyhole.toml:2" in said.err
    assert "egress" in said.err
    (project.directory / "keyhole.toml").unlink()
    said = project.run(*command)
    assert said.code == 125
    assert "keyhole.toml" in said.err
    assert not ran.exists()

    project.policy("")
    assert project.run(*command).code == 0
    assert ran.exists()


def test_125_for_files_that_must_not_be_inside(project: Project) -> None:
    """I1: a policy cannot bind what holds credentials, nor a tree in which Keyhole lies (I11)."""
    (project.home / ".ssh").mkdir()
    (project.home / "plain").mkdir()
    project.person.own(project.home / ".ssh", project.home / "plain")
    for path, reason in (("~/.ssh", ".ssh"), ("/usr", "/usr"), ("~", "home")):
        project.policy(f'[sandbox]\nwritable = [".", "{path}"]\n')
        said = project.shell(MARK)
        assert said.code == 125, path
        assert reason in said.err
    assert not (project.directory / "ran").exists()
    project.policy('[sandbox]\nwritable = [".", "~/plain"]\n')
    assert project.shell(MARK).code == 0
    assert (project.directory / "ran").exists()
