"""Keyhole's own lines beside programs that have the terminal to themselves.

A line that is painted into an editor's or an agent's screen is torn and soon overwritten. It waits
until the program has ended; the log has it at once.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.rigs.sandbox.screens import on_a_terminal
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

ASKED = 3
BESIDE = f"""
rm -f go done
(
    while ! [ -e go ]; do sleep 0.05; done
    for each in {" ".join(map(str, range(ASKED)))}; do getent hosts evil.example; done
    : > done
) </dev/null >/dev/null 2>&1 &
"""
"""Asks for a name that no rule allows, beside the program, once the test has made the file `go`."""

CURSES = """
import curses
def draw(window):
    window.addstr(0, 0, "ready")
    window.refresh()
    while window.getkey() != "q":
        pass
curses.wrapper(draw)
"""

RAW = """
import os, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"ready")
while os.read(0, 1) != b"q":
    pass
termios.tcsetattr(0, termios.TCSANOW, before)
"""

PROGRAMS = {
    "less": ("exec less long", "line 0\\b", "q"),
    "vim": ("exec vim -u NONE -N long", "line 0\\b", ":q!\r"),
    "curses": (f"exec python3 -I -c '{CURSES}'", "ready", "q"),
    "raw mode alone": (f"exec python3 -I -c '{RAW}'", "ready", "q"),
}
REFUSED = r"keyhole:\S* denied evil\.example"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_line_waits_for_the_end_of_a_full_screen_program(plain: Project, name: str) -> None:
    """I8: it is in the log meanwhile. The control is the next test."""
    if name in ("less", "vim") and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    command, ready, key = PROGRAMS[name]
    plain.write("long", "".join(f"line {number}\n" for number in range(200)))
    with on_a_terminal(plain, "sh", "-c", BESIDE + command) as screen:
        screen.until(ready)
        plain.write("go", "")
        until((plain.directory / "done").exists, told=lambda: screen.seen)
        until(lambda: "evil.example" in plain("log", "--denied").out)
        screen.drain()
        assert "evil.example" not in screen.seen
        screen.type(key)
        assert screen.wait() == 0
        assert screen.settings == screen.before
    assert "while a program had the terminal:" in screen.seen
    (line,) = (each for each in screen.seen.splitlines() if re.search(REFUSED, each))
    assert "`keyhole why " in line
    times = re.search(r"\((\d+) times\)", line)
    assert times is not None
    assert int(times[1]) >= ASKED
    assert screen.seen.index("evil.example") < screen.seen.index("audit head")


def test_a_line_is_printed_at_once_beside_a_program_that_prints_lines(plain: Project) -> None:
    with on_a_terminal(plain, "sh", "-c", BESIDE + "echo ready; read -r key; echo bye") as screen:
        screen.until("ready")
        plain.write("go", "")
        screen.until(REFUSED)
        screen.type("\r")
        screen.until("bye")
        assert screen.wait() == 0
    assert "while a program had the terminal:" not in screen.seen


def test_what_waited_is_printed_when_a_shell_has_its_terminal_back(plain: Project) -> None:
    """A program's end is not the run's: after an editor, a shell goes on."""
    plain.write("long", "".join(f"line {number}\n" for number in range(200)))
    script = BESIDE + f"python3 -I -c '{CURSES}'; echo after; read -r key"
    with on_a_terminal(plain, "sh", "-c", script) as screen:
        screen.until("ready")
        plain.write("go", "")
        until((plain.directory / "done").exists, told=lambda: screen.seen)
        screen.drain()
        assert "evil.example" not in screen.seen
        screen.type("q")
        # The screen is free as soon as the program has left it, so either may come first.
        screen.until(f"(?s)after.*{REFUSED}|{REFUSED}.*after")
        screen.type("\r")
        assert screen.wait() == 0


def test_lines_in_a_file_do_not_wait(plain: Project) -> None:
    """Standard error is elsewhere: there is no picture to tear."""
    kept = plain.directory.parent / "errors"
    with (
        kept.open("wb") as errors,
        on_a_terminal(
            plain, "sh", "-c", BESIDE + f"exec python3 -I -c '{RAW}'", stderr=errors.fileno()
        ) as screen,
    ):
        screen.until("ready")
        plain.write("go", "")
        until(lambda: "denied evil.example" in kept.read_text())
        screen.type("q")
        assert screen.wait() == 0
    assert "while a program" not in kept.read_text()


def test_a_gateway_for_many_counts_what_waits_too(project: Project) -> None:
    assert project("up").code == 0
    try:
        with on_a_terminal(project, "sh", "-c", BESIDE + f"exec python3 -I -c '{RAW}'") as screen:
            screen.until("ready")
            project.write("go", "")
            until((project.directory / "done").exists, told=lambda: screen.seen)
            screen.drain()
            assert "evil.example" not in screen.seen
            screen.type("q")
            assert screen.wait() == 0
        assert re.search(REFUSED + r".* \(\d+ times\)", screen.seen), screen.seen
    finally:
        assert project("down").code == 0
