"""Findings outlive the run that left them: in the log, at the next run, and by a verb (I11)."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.projects import line_of
from tests.rigs.sandbox.screens import on_a_terminal
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

REMINDER = "open from earlier runs"


@pytest.fixture(scope="module")
def one(new_project: Callable[..., Project]) -> Project:
    return new_project()


@pytest.fixture
def project(one: Project) -> Project:
    """The same for all tests, with nothing open."""
    for path in one.directory.iterdir():
        if path.name != "keyhole.toml":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(one.home / "state/keyhole/findings", ignore_errors=True)
    return one


def listed(project: Project) -> list[dict[str, str]]:
    said = project("findings", "--json")
    assert said.code == 0, said
    found: list[dict[str, str]] = json.loads(said.out)
    return found


def test_a_finding_is_an_event_and_is_told_until_it_is_dismissed(project: Project) -> None:
    """I11, I8. Control: before, nothing is told and nothing is listed."""
    assert REMINDER not in project.shell("true").err
    assert listed(project) == []
    left = project.shell("echo evil > .envrc")
    path = str(project.directory / ".envrc")
    assert f"new: {path} (" in left.err
    events = [e for e in project.events() if e["reason"] == "host-may-execute"]
    assert (events[-1]["kind"], events[-1]["details"]["path"]) == ("session", path)
    assert events[-1]["details"]["change"] == "new"
    for flags in ((), ("--quiet",)):
        told = project.run("true", flags=flags)
        assert f"keyhole: 1 finding is {REMINDER}" in told.err
        assert "`keyhole findings`" in told.err
        assert "new: " not in told.err
    (row,) = listed(project)
    assert (row["path"], row["change"], row["project"]) == (path, "new", str(project.directory))
    assert row["id"] in project("findings").out
    done = project("findings", "dismiss", row["id"])
    assert (done.code, done.out) == (0, f"dismissed {row['id']}: {path}\nno findings are open\n")
    assert REMINDER not in project.shell("true").err
    assert project("findings", "dismiss", row["id"]).code == 2


def test_a_person_on_a_terminal_reads_it_too(project: Project) -> None:
    """I11: tests that only ever pipe have missed what a person sees."""
    project.shell("echo evil > .envrc")
    with on_a_terminal(project, "true") as screen:
        screen.until(REMINDER)
        assert screen.wait() == 0


def test_a_finding_goes_when_the_file_is_gone(project: Project) -> None:
    project.shell("echo evil > .envrc")
    assert len(listed(project)) == 1
    (project.directory / ".envrc").unlink()
    assert listed(project) == []
    assert "nothing is left behind" in project("findings").out
    assert REMINDER not in project.shell("true").err


def test_nothing_in_the_sandbox_sees_or_writes_the_store(project: Project) -> None:
    """I11. Control: outside it is there."""
    project.shell("echo evil > .envrc")
    store = project.home / "state/keyhole/findings"
    assert list(store.glob("*.json"))
    inside = project.shell(f"ls {store}; echo x > {store}/x; ls -d {project.home}/state")
    assert inside.out == ""
    assert len(listed(project)) == 1


def test_a_link_made_inside_makes_findings_of_what_it_leads_to(project: Project) -> None:
    """I11: `.claude -> innocuous/` in a real run, and an existing `.envrc -> env/common.sh`."""
    done = project.shell(
        "mkdir innocuous; echo '{}' > innocuous/settings.json; ln -s innocuous .claude"
    )
    for name in (".claude", "innocuous/settings.json"):
        assert f"new: {project.directory / name} (" in done.err
    assert {row["path"] for row in listed(project)} == {
        str(project.directory / name) for name in (".claude", "innocuous/settings.json")
    }
    # From then on it cannot be changed inside; what is beside it can.
    again = project.shell("echo evil > innocuous/settings.json; echo fine > innocuous/other")
    assert "Permission denied" in again.err or "Read-only" in again.err
    assert (project.directory / "innocuous/settings.json").read_text() == "{}\n"
    assert (project.directory / "innocuous/other").read_text() == "fine\n"


def test_what_an_existing_link_leads_to_cannot_be_changed_inside(
    new_project: Callable[..., Project],
) -> None:
    """I11. Control: the file beside it can."""
    project = new_project()
    script = project.write("env/common.sh", "echo mine\n")
    project.write("env/other.sh", "echo mine\n")
    (project.directory / ".envrc").symlink_to("env/common.sh")
    done = project.shell(
        "echo evil > .envrc; echo evil > env/common.sh; mv env gone; echo fine > env/other.sh; "
        "rm .envrc; ln -s env/other.sh .envrc"
    )
    assert script.read_text() == "echo mine\n"
    assert (project.directory / "env/other.sh").read_text() == "fine\n"
    assert f"changed: {project.directory}/.envrc (a link to env/other.sh; " in done.err


def test_packages_are_installed_as_ever_and_told_in_one_line(project: Project) -> None:
    """Daily work goes on: a real environment, made and used inside."""
    done = project.shell(
        "python3 -m venv --without-pip .venv && for n in 1 2 3 4 5 6; do "
        "printf '#!/bin/sh\\n' > .venv/bin/tool$n; done; mkdir -p node_modules/.bin "
        "node_modules/x; for n in 1 2 3 4 5 6; do echo > node_modules/x/$n; "
        "ln -s ../x/$n node_modules/.bin/$n; done"
    )
    assert done.code == 0, done
    told = [line for line in done.err.splitlines() if "new: " in line]
    assert len(told) == 2, told
    again = project.shell("echo >> .venv/bin/activate; rm -rf .venv node_modules")
    assert again.code == 0, again
    assert "changed: " not in again.err


def test_an_unfinished_rebase_is_told_in_worktrees_and_submodules_too(project: Project) -> None:
    """I11: agents rebase inside, so it cannot be prevented. Control: a finished one is not told."""
    who = "-c user.name=a -c user.email=a@b.example -c commit.gpgsign=false"
    setup = (
        f'git init -q . && git() {{ command git {who} -c protocol.file.allow=always "$@"; }}\n'
        "git commit -q --allow-empty -m one && git init -q lib && (cd lib && "
        "git commit -q --allow-empty -m one && git commit -q --allow-empty -m two) && "
        "git submodule add -q ./lib sub && git commit -q -m two && git worktree add -q tree"
    )
    assert project.shell(setup).code == 0
    project("findings", "dismiss", "--all")
    done = project.shell(f"cd sub && git {who} rebase -q --force-rebase HEAD~1")
    assert done.code == 0, done
    assert "rebase-merge" not in done.err
    stopped = project.shell(
        f"for d in sub tree; do (cd $d && git {who} -c 'sequence.editor=sed -i 1ibreak' "
        "rebase -q -i HEAD~1); done; "
        "echo 'exec evil' >> .git/modules/sub/rebase-merge/git-rebase-todo"
    )
    for place in (".git/modules/sub", ".git/worktrees/tree"):
        assert f"new: {project.directory / place}/rebase-merge (" in stopped.err, stopped


def test_a_run_that_is_killed_leaves_its_findings_to_the_next(project: Project) -> None:
    """I11: killing Keyhole hides nothing."""
    script = "echo evil > .envrc; echo ready; sleep 60"
    with project.running("sh", "-c", script) as process:
        assert line_of(process.stdout) == "ready"
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
    assert f"1 finding is {REMINDER}" in project.shell("true").err
    (row,) = listed(project)
    assert row["path"] == str(project.directory / ".envrc")


def test_findings_of_every_project_are_listed_from_anywhere(project: Project) -> None:
    project.shell("echo evil > .envrc")
    elsewhere = project.home / "elsewhere"
    if not elsewhere.exists():
        elsewhere.mkdir()
        project.person.own(elsewhere)
    policy = str(project.directory / "keyhole.toml")
    nothing = project("findings", "--json", "--policy", str(elsewhere / "keyhole.toml"))
    assert json.loads(nothing.out) == []
    for words in (("--every-project",), ("--policy", policy), ("list", "--every-project")):
        said = project("findings", *words, "--json")
        assert [row["path"] for row in json.loads(said.out)] == [f"{project.directory}/.envrc"]


@pytest.mark.parametrize(
    "words", [("dismiss",), ("dismiss", "x", "--all"), ("dismiss", "nonsense")]
)
def test_a_dismissal_of_nothing_that_is_there_is_refused(
    project: Project, words: tuple[str, ...]
) -> None:
    said = project("findings", *words)
    assert said.code == 2
    assert "keyhole findings" in said.err
