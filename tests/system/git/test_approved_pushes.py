"""A real `git push` to a branch that no rule names, held until a person answers (I3)."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.git.errands import furnish
from tests.rigs.git.sandboxed import Desk, script
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project, rest_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.rigs.git.repositories import Bare
    from tests.rigs.git.server import GitServer

pytestmark = pytest.mark.outside

GRANT = """
repos = ["acme/widgets"]
push = ["agent/*"]
[approvals]
ask = ["pushes"]
wait = "80s"
"""
PUSH = "clone; change {0}; git push -q origin HEAD:refs/heads/{0} 2>&1 && echo pushed || true"


@pytest.fixture(scope="module")
def bare(git_server: GitServer) -> Bare:
    return furnish(git_server)


@pytest.fixture
def project(git_server: GitServer, git_ground: Path, bare: Bare) -> Project:
    directory = git_ground / f"approved-{len(list(git_ground.iterdir()))}"
    directory.mkdir()
    made = Project.make(this_person(directory), 0)
    Desk(made, git_server).policy(GRANT)
    return made


@contextmanager
def held(project: Project, branch: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A push that waits, and its question."""
    with project.running("sh", "-c", script(branch, PUSH.format(branch))) as run:
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = json.loads(project("asks", "--json").out)
            return bool(found)

        until(look, pause=0.1)
        yield run, found[0]


def said(run: subprocess.Popen[bytes]) -> str:
    out = rest_of(run.stdout).decode()
    assert run.wait(PATIENCE) == 0, out
    return out


def test_a_push_arrives_when_it_is_approved_and_not_before(project: Project, bare: Bare) -> None:
    with held(project, "fix-1") as (run, ask):
        assert (ask["kind"], ask["rule"], ask["method"]) == ("pushes", "fix-1", "create")
        assert "refs/heads/fix-1" not in bare.refs()
        done = project("approve", ask["id"])
        assert "may push (create) refs/heads/fix-1 to github.com/acme/widgets, once" in done.out
        assert said(run) == "pushed\n"
    assert "refs/heads/fix-1" in bare.refs()


def test_a_push_that_is_refused_never_arrives_and_git_says_why(
    project: Project, bare: Bare
) -> None:
    with held(project, "fix-2") as (run, ask):
        assert project("deny", ask["id"]).code == 0
        out = said(run)
        assert "[remote rejected]" in out
        assert "keyhole:" in out
    assert "refs/heads/fix-2" not in bare.refs()


def test_always_names_the_one_branch_and_the_default_branch_is_not_asked_about(
    project: Project, bare: Bare
) -> None:
    with held(project, "fix-3") as (run, ask):
        done = project("approve", ask["id"], "--always")
        assert done.code == 0, done
        assert said(run) == "pushed\n"
    text = (project.directory / "keyhole.toml").read_text()
    assert 'push = ["agent/*", "fix-3"]' in text
    before = bare.refs()
    main = "clone; change 4; git push -q origin HEAD:main 2>&1 && echo pushed || true"
    refused = project("run", "--", "sh", "-c", script("four", main))
    assert "[remote rejected]" in refused.out, refused
    assert bare.refs() == before
