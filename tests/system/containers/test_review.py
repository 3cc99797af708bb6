"""Changes of a container that are held for review: it works on a copy."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from keyhole.app.run.held_changes import change_store
from keyhole.system.processes import has_ended
from tests.rigs.sandbox.projects import line_of
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

TOKEN = "ghp_" + "q7RtZ2mW9xKc4VbN8sLd1FhJ6pGy3TaE5uXo"

CHANGES = """
import os, shutil
print(open(".env").read() + open("a").read(), end="")
with open("a", "a") as file: file.write("more\\n")
shutil.rmtree("d")
os.mkdir("n")
with open("n/x", "w") as file: file.write("new\\n")
"""


def test_a_container_changes_nothing_until_it_is_applied(
    new_project: Callable[..., Boxed],
) -> None:
    """I1, I11. Control: with --changes direct the same command changes the files at once."""
    project = new_project(more='changes = "review"')
    project.write("a", "one\n")
    project.write("d/e", "two\n")
    project.write(".env", f"TOKEN={TOKEN}\n")
    ran = project.run("python3", "-c", CHANGES)
    assert (ran.code, ran.lines) == (0, ["one"]), ran
    assert (project.directory / "a").read_text() == "one\n"
    again = project.shell("cat a n/x; test -e d || echo gone; echo more >> n/x")
    assert again.lines == ["one", "more", "new", "gone"], again
    assert "goes on with 5 changes" in again.err
    assert project("apply").code == 0
    assert (project.directory / "n/x").read_text() == "new\nmore\n"
    assert (project.directory / "n/x").stat().st_uid == project.person.uid
    assert not (project.directory / "d").exists()
    assert project("undo").code == 0
    assert (project.directory / "d/e").read_text() == "two\n"
    assert project("discard").code == 0
    direct = project.run("sh", "-c", "echo direct > a", flags=("--changes", "direct"))
    assert direct.code == 0, direct
    assert (project.directory / "a").read_text() == "direct\n"


def test_a_container_with_a_name_holds_its_changes_from_one_start_to_the_next(
    new_project: Callable[..., Boxed],
) -> None:
    """I11. It works on its copy; what it changed is read when it has ended."""
    project = new_project(more='changes = "review"')
    project.write("a", "one\n")
    try:
        assert project("new", "held", "--trust").code == 0
        assert project("exec", "held", "--", "sh", "-c", "echo two >>a").code == 0
        assert "in use by held" in project("apply").err
        assert "1 change held for review" in project("stop", "held").err
        assert "goes on with 1 change" in project("start", "held").err
        assert project("exec", "held", "--", "cat", "a").lines == ["one", "two"]
    finally:
        project("destroy", "held")
    assert (project.directory / "a").read_text() == "one\n"
    assert project("apply").code == 0
    assert (project.directory / "a").read_text() == "one\ntwo\n"


def test_changes_of_a_killed_container_wait_until_nothing_in_it_lives(
    new_project: Callable[..., Boxed],
) -> None:
    """I11: its holder is recorded, with which every process of the container ends."""
    project = new_project(more='changes = "review"')
    project.write("a", "one\n")
    store = change_store(project.home / "state/keyhole/changes", project.directory / "keyhole.toml")
    script = "echo two >>a; echo ready; exec sleep 60"
    with project.running("sh", "-c", script) as process:
        assert line_of(process.stdout) == "ready"
        *_, holder = (store.directory / "sandbox").read_text().splitlines()
        first = os.pidfd_open(int(holder.split()[0]))
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        with store.holding("a test", collects=False):
            assert has_ended(first, 0)
        os.close(first)
    assert project("apply").code == 0
    assert (project.directory / "a").read_text() == "one\ntwo\n"
    # The engine keeps the stopped container of a killed run until then.
    assert project("prune").code == 0
