"""Who commits on this host: read as git reads it, and never where the sandbox has a say."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from keyhole.host.git_identity import MAX_FILES, MAX_INCLUDES, git_identity
from keyhole.model.commit_identity import CommitIdentity
from tests.rigs.host.building import host, needs, program, write

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.host.host_environment import HostEnvironment

ADA = "[user]\nname = Ada King\nemail = ada@home.example\n"


def who(surroundings: HostEnvironment, directory: str = "/srv/widgets/.git") -> CommitIdentity:
    return git_identity(surroundings, directory)


def test_the_users_settings_win_over_the_systems_and_the_newer_place_yields(tmp_path: Path) -> None:
    found = host(
        tmp_path,
        system={"/etc/gitconfig": "[user]\nname = System\nemail = root@host.example\n"},
        home={".config/git/config": "[user]\nname = Newer\n"},
    )
    assert who(found) == CommitIdentity("Newer", "root@host.example")
    write(tmp_path / "home/.gitconfig", ADA)
    assert who(found) == CommitIdentity("Ada King", "ada@home.example")


def test_a_host_without_settings_names_nobody(tmp_path: Path) -> None:
    assert who(host(tmp_path)) == CommitIdentity()
    assert who(host(tmp_path, home={".gitconfig": "[user\n"})) == CommitIdentity()


def test_a_variable_that_names_the_settings_is_obeyed(tmp_path: Path) -> None:
    other = write(tmp_path / "other", "[user]\nname = Other\n")
    env = {"GIT_CONFIG_GLOBAL": str(other), "XDG_CONFIG_HOME": "/nowhere"}
    assert who(host(tmp_path, home={".gitconfig": ADA}, env=env)) == CommitIdentity("Other")


def test_an_identity_for_work_is_taken_in_the_repositories_that_it_is_for(tmp_path: Path) -> None:
    """Else work would be signed with a private address, or the other way round."""
    settings = ADA + (
        '[includeIf "gitdir:~/project/"]\n\tpath = work.inc\n'
        '[includeIf "gitdir/i:/SRV/*/.git"]\n\tpath = ~/srv.inc\n'
        '[includeIf "gitdir:lib.git"]\n\tpath = lib.inc\n'
        '[includeIf "gitdir:./near/"]\n\tpath = near.inc\n'
        '[includeIf "onbranch:main"]\n\tpath = branch.inc\n'
        '[includeIf "gitdir:"]\n\tpath = branch.inc\n'
    )
    home = {".gitconfig": settings, "branch.inc": "[user]\nemail = never@b.example\n"}
    for name in ("work", "srv", "lib", "near"):
        home[f"{name}.inc"] = f"[user]\nemail = {name}@b.example\n"
    found = host(tmp_path, home=home)
    expected = {
        f"{found.home}/project/widgets/.git": "work@b.example",
        f"{found.home}/other/.git": "ada@home.example",
        "/srv/widgets/.git": "srv@b.example",
        "/srv/deep/widgets/.git": "ada@home.example",
        "/opt/lib.git": "lib@b.example",
        f"{found.home}/near/.git": "near@b.example",
    }
    assert {path: who(found, path).email for path in expected} == expected
    assert who(found).name == "Ada King"


def test_it_is_what_git_says(tmp_path: Path) -> None:
    """Control of the above, and of the order in which an include takes its place."""
    git = needs("git")
    repository = tmp_path / "home/project/widgets"
    clean = {"HOME": str(tmp_path / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
    settings = (
        "[include]\n\tpath = first.inc\n[user]\n\tname = Second\n\temail = second@b.example\n"
        '[includeIf "gitdir:~/project/"]\n\tpath = "wo\\"rk.inc"\n[user]\n\tname = "Last, B." ; x\n'
    )
    home = {
        ".gitconfig": settings,
        "first.inc": ADA,
        'wo"rk.inc': "[user]\nemail = work@b.example\nname = Gone\n",
    }
    found = host(tmp_path, home=home)
    subprocess.run([git, "init", "--quiet", repository], env=clean, check=True)
    said = [
        subprocess.run(
            [git, "-C", repository, "config", f"user.{part}"],
            env=clean, check=True, capture_output=True, text=True,
        ).stdout.strip()
        for part in ("name", "email")
    ]  # fmt: skip
    assert (
        who(found, f"{repository}/.git")
        == CommitIdentity(*said)
        == CommitIdentity("Last, B.", "work@b.example")
    )


def test_settings_that_the_sandbox_can_write_are_not_read(tmp_path: Path) -> None:
    """I11. Control: the same include outside of its trees is followed."""
    project = tmp_path / "project"
    for directory in (project, tmp_path / "outside"):
        write(directory / "git.inc", "[user]\nemail = chosen@b.example\n")
    found = host(tmp_path, home={".gitconfig": ADA}, writable=(project,))
    for name, email in (("project", "ada@home.example"), ("outside", "chosen@b.example")):
        write(
            tmp_path / "home/.gitconfig", ADA + f"[include]\n\tpath = {tmp_path}/{name}/git.inc\n"
        )
        assert who(found).email == email
    env = {"GIT_CONFIG_GLOBAL": str(project / "git.inc")}
    assert who(host(tmp_path, env=env, writable=(project,))) == CommitIdentity()


def test_nothing_is_executed_to_learn_it(tmp_path: Path) -> None:
    """I11. Attack: a program called git on the PATH, and settings that name commands."""
    ran = tmp_path / "ran"
    program(tmp_path / "bin/git", f"touch {ran}")
    settings = ADA + f"[core]\n\tfsmonitor = touch {ran}\n\tpager = touch {ran}\n"
    found = host(tmp_path, home={".gitconfig": settings}, env={"PATH": str(tmp_path / "bin")})
    assert who(found) == CommitIdentity("Ada King", "ada@home.example")
    assert not ran.exists()


def test_a_pipe_in_the_place_of_an_include_holds_nothing_up(tmp_path: Path) -> None:
    """I9."""
    found = host(tmp_path, home={".gitconfig": ADA + "[include]\n\tpath = pipe\n"})
    os.mkfifo(tmp_path / "home/pipe")
    assert who(found).name == "Ada King"


def test_includes_that_lead_in_a_circle_or_multiply_end(tmp_path: Path) -> None:
    """I9. Control: as deep as git goes, they are followed."""
    circle = ADA + "[include]\n\tpath = .gitconfig\n" * 9
    assert who(host(tmp_path / "one", home={".gitconfig": circle})).name == "Ada King"
    assert MAX_FILES > MAX_INCLUDES
    chain = {".gitconfig": "[include]\n\tpath = 1\n"}
    for depth in range(1, MAX_INCLUDES + 2):
        chain[str(depth)] = f"[user]\n\tname = {depth}\n[include]\n\tpath = {depth + 1}\n"
    assert who(host(tmp_path / "two", home=chain)).name == str(MAX_INCLUDES)


def test_a_value_that_is_no_name_is_passed_over_and_an_empty_one_resets(tmp_path: Path) -> None:
    odd = ADA + '[user]\n\tname = "a\\n[core]"\n\temail =\n[user "x"]\n\tname = Other\n'
    assert who(host(tmp_path, home={".gitconfig": odd})) == CommitIdentity("Ada King", "")
