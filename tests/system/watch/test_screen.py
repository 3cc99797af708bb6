"""`keyhole watch` on a whole terminal of 80 columns and 24 rows."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.rigs.asking import HOST, PORT, PROGRAM, asked_host
from tests.rigs.pictures import picture_screen
from tests.rigs.sandbox.people import open_ground, this_person
from tests.rigs.sandbox.projects import Project, line_of
from tests.rigs.tmux import tmux_screen
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.outside


@pytest.fixture
def project() -> Iterator[Project]:
    with open_ground("watch") as path:
        yield Project.make(this_person(path), 0)


def test_a_question_is_answered_on_the_screen_and_a_session_revoked(project: Project) -> None:
    colours = {"COLORTERM": "truecolor"}
    with asked_host() as policy, tmux_screen(project, "watch", env=colours) as screen:
        project.policy(policy)
        screen.until("Decisions")
        program = f"{PROGRAM}\nimport time; time.sleep(600)"
        with project.running("python3", "-I", "-S", "-c", program) as run:
            assert line_of(run.stdout) == "ready"
            screen.until("1 waiting for your answer")
            screen.until(f"connect to {HOST}:{PORT}")
            picture_screen(screen, "guides/watch.svg", "keyhole watch")
            screen.press("a")
            screen.until("May it connect to")
            until(
                lambda: re.search(r"\x1b\[[\d;]*7m[^N]* No ", screen.text("-e"))
            )  # it has the focus
            picture_screen(screen, "approvals-watch.svg", "keyhole watch")
            screen.press("Escape")  # leaves the question open
            screen.until("1 waiting for your answer")
            screen.press("a")
            screen.until("May it connect to")
            screen.press("Right", "Enter")  # the first answer beside no: once
            assert line_of(run.stdout) == "ping"
            screen.until("approved")
            (session,) = json.loads(project("ps", "--json").out)
            screen.until(session["id"])
            screen.press("r")
            screen.until("Revoke python3")
            screen.press("Enter")  # means no
            screen.until_gone("Revoke python3")
            screen.press("r")
            screen.until("Revoke python3")
            screen.press("Right", "Enter")
            screen.until("revoked")
            assert json.loads(project("ps", "--json").out)[0]["state"] == "revoked"
        screen.press("q")
        screen.until("ended 0")


def test_without_colour_the_screen_has_none(project: Project) -> None:
    with tmux_screen(project, "watch", env={"NO_COLOR": "1"}) as screen:
        screen.until("Decisions")
        until(lambda: "\x1b[31m" not in screen.text("-e"), PATIENCE)
        assert not any(f"[{code}m" in screen.text("-e") for code in (31, 32, 33, 34, 35, 36))
