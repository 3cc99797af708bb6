"""What a run may do to its project, and what it leaves behind (I11)."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.origin import git
from tests.rigs.sandbox.projects import SEARCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = pytest.mark.outside

WHO = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b.example GIT_COMMITTER_NAME=a " \
    "GIT_COMMITTER_EMAIL=a@b.example"  # fmt: skip

WRITES = """
try() { if (eval "$2") 2>/dev/null; then echo "$1 written"; else echo "$1 refused"; fi; }
try hook 'echo evil > .git/hooks/pre-commit'
try hooks-moved 'mv .git/hooks .git/old'
try config 'echo "[core] fsmonitor = evil" >> .git/config'
try config-by-git 'git config core.fsmonitor evil'
try config-replaced 'cp .git/config .git/x && mv .git/x .git/config'
try git-moved 'mv .git elsewhere'
try policy 'echo >> keyhole.toml'
try policy-moved 'mv keyhole.toml other.toml'
try policy-removed 'rm -f keyhole.toml'
try plain 'echo fine > plain'
"""


@pytest.fixture
def repository(new_project: Callable[..., Project]) -> Project:
    """A project in a git repository with a commit, a hook and a remote with a password."""
    project = new_project()
    _git(project, "init", "--quiet", "--initial-branch=main")
    _git(project, "remote", "add", "origin", "https://me:hunter2hunter2@git.example/w.git")
    project.write(".git/hooks/pre-push", "#!/bin/sh\nexit 0\n")
    project.write("readme", "first\n")
    _git(project, "add", "readme", "keyhole.toml")
    _git(project, "commit", "--quiet", "--message=first")
    return project


def test_git_works_inside_but_what_the_host_would_run_is_read_only(repository: Project) -> None:
    """I11, I1. Control: files can be written, and a commit made inside is seen outside."""
    config = (repository.directory / ".git" / "config").read_text()
    done = repository.shell(
        f"{WHO}\n{WRITES}\ngit add plain && git commit --quiet --message=inside"
        "\ngit log --format=%s\ngit remote get-url origin; cat .git/config"
    )
    assert done.code == 0, done
    told = dict(line.split() for line in done.lines[:10])
    assert told.pop("plain") == "written"
    # These change the run's copy of the config.
    assert {told.pop("config"), told.pop("config-by-git")} == {"written"}
    assert set(told.values()) == {"refused"}, told
    assert done.lines[10:12] == ["inside", "first"]
    assert done.lines[12] == "https://git.example/w.git"
    assert "hunter2" not in done.out
    assert _git(repository, "log", "--format=%s").split() == ["inside", "first"]
    assert _git(repository, "status", "--porcelain") == ""
    assert (repository.directory / ".git" / "config").read_text() == config
    assert os.listdir(repository.directory / ".git" / "hooks").count("pre-commit") == 0
    owners = {
        path.lstat().st_uid
        for path in (repository.directory / ".git").rglob("*")
    }  # fmt: skip
    assert owners == {repository.person.uid}
    assert "may execute" not in done.err


def test_what_the_host_may_execute_later_is_named_at_the_end(repository: Project) -> None:
    """I11. Control: a run that leaves nothing of the kind says nothing of it."""
    quiet = repository.shell("mkdir -p src; echo 'print()' > src/main.py")
    assert "new: " not in quiet.err
    done = repository.shell(
        "echo 'evil' > .envrc; git init --quiet nested; mkdir .vscode; echo {} > .vscode/tasks.json"
    )
    assert done.code == 0, done
    new = [line for line in done.err.splitlines() if "new: " in line]
    for name in (".envrc", "nested/.git", ".vscode/tasks.json"):
        path = repository.directory / name
        assert any(f"new: {path} (" in line for line in new), (name, done.err)
    assert "your host may execute" in done.err


def test_credentials_that_lie_in_the_project_are_not_seen_inside(repository: Project) -> None:
    """I1. Control: another file of the project is seen."""
    secret = "hunter2hunter2"
    repository.write(".env", f"API_KEY={secret}\n")
    repository.write(".npmrc", f"//registry.example/:_authToken={secret}\n")
    done = repository.shell(
        f"cat readme .env .npmrc; grep -rl {secret} . /etc /proc/self/environ 2>/dev/null; true"
    )
    assert done.out == "first\n"
    assert ".env" in done.err
    assert secret not in done.err


TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"


def test_tokens_in_settings_files_are_not_seen_inside(repository: Project) -> None:
    """I1. Control: settings without one are seen, and so is what the policy lists."""
    names = (".mcp.json", ".claude/settings.local.json", ".vscode/settings.json", "mise.toml",
             "prod.tfvars", "docker-compose.yml")  # fmt: skip
    for name in names:
        repository.write(name, f'GITHUB_TOKEN = "{TOKEN}"\n')
    repository.write("plain.toml", 'GITHUB_TOKEN = "$GITHUB_TOKEN"\n')
    done = repository.shell(f"cat plain.toml {' '.join(names)}; grep -rl {TOKEN} .; true")
    assert done.out == 'GITHUB_TOKEN = "$GITHUB_TOKEN"\n'
    assert all(name in done.err for name in names)
    assert "masked, a token is in it (what sandbox.unsafe_paths lists is shown)" in done.err
    assert TOKEN not in done.err
    repository.policy('[sandbox]\nunsafe_paths = ["mise.toml"]\n')
    assert TOKEN in repository.shell("cat mise.toml").out


def test_a_token_in_a_reflog_stops_the_run_until_it_is_removed(repository: Project) -> None:
    """I1: git records the words of `git pull ADDRESS`. Control: what the message says helps, and
    git commits inside again."""
    log = repository.directory / ".git/logs/HEAD"
    entry = log.read_text().splitlines()[-1].partition("\t")[0]
    with log.open("a") as file:
        file.write(f"{entry}\tpull https://me:{TOKEN}@forge.corp.io/x main: Fast-forward\n")
    refused = repository.run("true")
    assert refused.code == 125
    assert f"{log} holds a token" in refused.err
    assert TOKEN not in refused.err
    _git(repository, "reflog", "expire", "--expire=now", "--all")
    commit = "git -c user.name=a -c user.email=a@b.example commit -q --allow-empty -m new"
    done = repository.shell(f"{commit} && git log -1 --format=%s")
    assert (done.code, done.out) == (0, "new\n")


def _git(project: Project, *words: str) -> str:
    if project.person.uid == os.geteuid():
        return git(project.directory, *words)
    return git(project.directory, *words, **project.person.become())


def test_the_environment_is_cleared_but_for_what_is_named(
    new_project: Callable[..., Project],
) -> None:
    """I1. Control: a variable that the policy names comes in."""
    project = new_project('[sandbox]\npass_env = ["CHOSEN"]\n')
    done = project.run("env", env={"CHOSEN": "yes", "OTHER": "no", "API_TOKEN": "secret"})
    names = {line.partition("=")[0] for line in done.lines}
    assert "CHOSEN=yes" in done.lines
    assert not {"OTHER", "API_TOKEN", "XDG_STATE_HOME"} & names
    assert f"PATH={SEARCH}" in done.lines
    refused = new_project('[sandbox]\npass_env = ["API_TOKEN"]\n').run(
        "true", env={"API_TOKEN": "secret"}
    )
    assert refused.code == 125
    assert "API_TOKEN" in refused.err


def test_directories_may_have_any_name(new_project: Callable[..., Project]) -> None:
    """I12, I11. Attack: a tree with names that are not UTF-8, or that a table of mounts writes in
    another way, holds a policy; that one is covered, and every run goes on."""
    project = new_project()
    for name in (b"\xff", b"a \xc3\xa9\\", b"\r\n\t"):
        for file in ("keyhole.toml", "plain"):
            project.write(f"{os.fsdecode(name)}/{file}", "version = 1\n")
    done = project.shell(
        'for d in */; do (echo x > "$d/plain") && echo written; '
        '(echo x > "$d/keyhole.toml") 2>/dev/null || echo covered; done'
    )
    assert (done.code, done.lines) == (0, ["written", "covered"] * 3), done


def test_a_policy_that_was_found_above_is_announced_once(repository: Project) -> None:
    """Control: in its own directory, or named, it is not."""
    below = repository.write("deep/down/x", "").parent
    line = f"keyhole: the policy is {repository.directory}/keyhole.toml, found above this directory"
    assert line not in repository.run("true").err
    told = [replace(repository, directory=below).run("true") for _ in range(2)]
    assert [line in ran.err for ran in told] == [True, False]
