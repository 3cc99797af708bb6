"""Named sandboxes of bubblewrap: made, entered, attached to, stopped, started, destroyed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.rigs.sandbox.projects import until_nobody_is_in
from tests.rigs.sandbox.screens import Screen
from tests.rigs.waiting import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

DETACH = "\x10\x11"


@contextlib.contextmanager
def made(project: Project, name: str, *words: str) -> Iterator[None]:
    """A sandbox while the block lasts."""
    try:
        said = project("new", name, "--trust", *words)
        assert said.code == 0, said
        yield
    finally:
        project("destroy", name)


def listed(project: Project, name: str) -> dict[str, Any]:
    """The sandbox as `ps` lists it."""
    (found,) = (e for e in json.loads(project("ps", "--json").out) if e["name"] == name)
    return dict(found)


@contextlib.contextmanager
def attached(project: Project, name: str) -> Iterator[Screen]:
    def start(**ends: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - subprocess's own
        return project.start("attach", name, **ends)

    with Screen(start) as screen:
        screen.until("Ctrl-P Ctrl-Q leaves it")
        screen.until_raw()
        yield screen


@pytest.mark.by_turns("both")
def test_a_sandbox_is_made_entered_stopped_killed_started_and_destroyed(plain: Project) -> None:
    with made(plain, "box"):
        first = listed(plain, "box")
        assert (first["state"], first["runtime"], first["image"]) == ("running", "bwrap", None)
        script = "readlink /proc/self/ns/net; echo kept >kept; echo home >~/kept; exit 7"
        done = plain("exec", "box", "--", "sh", "-c", script)
        assert done.code == 7
        assert "already" in plain("new", "box").err
        said = plain("stop", "box")
        assert (said.code, said.lines[0]) == (0, "box ended; `keyhole start box` starts it again")
        until_nobody_is_in(done.lines[0])
        assert "nothing was run: box is stopped" in plain("exec", "box", "--", "true").err
        assert listed(plain, "box")["state"] == "stopped"
        said = plain("start", "box")
        assert (said.code, said.out) == (0, "box runs\n"), said
        assert "runs already" in plain("start", "box").err
        assert listed(plain, "box")["id"] != first["id"]
        done = plain(
            "exec", "box", "--", "sh", "-c", "cat kept; readlink /proc/self/ns/net; cat ~/kept"
        )
        assert (done.lines[0], done.lines[2]) == ("kept", "home")
        # I2: when the process that holds it is killed, everything inside ends too.
        os.kill(listed(plain, "box")["pid"], signal.SIGKILL)
        until_nobody_is_in(done.lines[1])
        until(lambda: listed(plain, "box")["state"] == "stopped")
        removed = plain("home", "reset", "--yes", "box")
        assert (removed.code, removed.out.endswith("of the sandbox box\n")) == (0, True), removed
        assert "no kept home of that id or name" in plain("home", "reset", "--yes", "box").err
        assert plain("start", "box").code == 0
        assert plain("exec", "box", "--", "ls", f"{plain.home}/kept").code != 0
        gone = plain("destroy", "box")
        assert (gone.code, gone.lines[-1]) == (0, "box is gone, with its home")
        assert json.loads(plain("home", "--json").out) == []
    assert "no sandbox 'box'" in plain("start", "box").err


ECHO = "echo ready; stty -echo; while read -r line; do echo got $line; done"


def test_people_attach_to_its_command_and_leave_it(plain: Project) -> None:
    """Two terminals see the same output; the keys that detach end one of them alone."""
    with made(plain, "talk", "--", "sh", "-c", ECHO):
        with attached(plain, "talk") as one, attached(plain, "talk") as two:
            one.type("first\r")
            one.until("got first")
            two.until("got first")
            two.type(DETACH)
            two.until("left; talk goes on")
            assert two.wait() == 0
            assert two.settings == two.before
            one.type("second\r")
            one.until("got second")
            one.type("\x04")
            one.until("talk has ended, exit code 0")
            assert one.wait() == 0
        assert listed(plain, "talk")["exit"] == 0


def test_a_command_that_ends_at_once_is_told(plain: Project) -> None:
    said = plain("new", "short", "--trust", "--", "no-such-program")
    assert said.code == 2
    assert "short was not started: its command ended at once, exit code 127" in said.err
    assert "not found in the sandbox" in said.err
    assert "no sandbox 'short'" in plain("start", "short").err
    refused = plain("new", "short", "--trust", "--image", "debian:12")
    assert "--image is for containers: add --runtime docker" in refused.err


def test_changes_of_a_sandbox_with_a_name_are_held_for_review(plain: Project) -> None:
    """I11. Control: the second sandbox, without a review, changes the person's file at once."""
    file = plain.write("notes", "one\n")
    with made(plain, "held", "--changes", "review"):
        assert plain("exec", "held", "--", "sh", "-c", "echo two >>notes; cat notes").lines == [
            "one",
            "two",
        ]
        assert file.read_text() == "one\n"
        assert "notes" in plain("changes", "--stat").out
        # One at a time: nothing else writes to the layer, nor applies it, while the sandbox runs.
        for words in (("apply",), ("run", "--changes", "review", "--", "true")):
            refused = plain(*words)
            assert refused.code != 0
            assert "in use by held (`keyhole stop held` ends it)" in refused.err, refused
        # I2: the layer of a killed supervisor is whole, and the next start goes on with it.
        os.kill(listed(plain, "held")["pid"], signal.SIGKILL)
        until(lambda: listed(plain, "held")["state"] == "stopped")
        assert file.read_text() == "one\n"
        assert "goes on with 1 change of earlier runs" in plain("start", "held").err
        assert plain("exec", "held", "--", "sh", "-c", "echo three >>notes").code == 0
        assert "1 change held for review: `keyhole changes` shows it," in plain("stop", "held").err
    assert plain("apply").code == 0
    assert file.read_text() == "one\ntwo\nthree\n"
    assert plain("undo").code == 0
    assert plain("discard").code == 0
    with made(plain, "direct"):
        assert plain("exec", "direct", "--", "sh", "-c", "echo direct >notes").code == 0
        assert file.read_text() == "direct\n"
