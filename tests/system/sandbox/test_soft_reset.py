"""A command cannot garble what Keyhole tells about it on a terminal (I11)."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.soft_reset import SoftReset
from tests.rigs.sandbox import emulator
from tests.rigs.sandbox.emulator import ROWS, Emulator, program_of
from tests.rigs.sandbox.people import this_person
from tests.rigs.sandbox.projects import Project
from tests.rigs.sandbox.screens import on_a_terminal

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = {
    "scroll region": r"\033[1;2r\033[1;1H",
    "margins and origin": r"\033[5;6r\033[?6h\033[2;70H",
    "alternate screen": r"\033[?1049h\033[2J\033[H",
    "alternate screen without a saved cursor": r"\0337\033[?47h\033[H",
    "graphics": r"\033(0",
    "graphics shifted in": r"\033)0\016",
    "unfinished title": r"\033]0;all is well",
    "unfinished device string": r"\033Pall is well",
    "unfinished application string": r"\033_Gall is well",
    "unfinished sequence": r"\033[1;2;3",
    "hidden": r"\033[8m\033[?25l",
    "cursor in other text": r"\033[3;1H",
    "insertion and no wrapping": r"\033[4h\033[?7l\033[?5h",
    "mouse, paste and keys": r"\033[?1000;1002;1003;1006;2004;1h\033=",
    "all at once": r"\033[2;3r\033[?6h\033(0\016\033[8m\033[?1049h\033[4h\033[?7l\033Pq\033]0;x",
}
PLAIN = {
    "alternate_on": "0", "cursor_flag": "1", "insert_flag": "0", "keypad_cursor_flag": "0",
    "keypad_flag": "0", "mouse_any_flag": "0", "origin_flag": "0",
    "scroll_region_lower": str(ROWS - 1), "scroll_region_upper": "0", "wrap_flag": "1",
}  # fmt: skip
BEFORE = "".join(f"echo 'earlier line {n} of the person, with words in it'\n" for n in range(9))

needs_tmux = pytest.mark.skipif(not emulator.PROGRAM, reason="tmux is not installed")


@pytest.fixture(scope="module")
def one(ground: Path) -> Project:
    """One project of whoever runs the suite: what a terminal shows does not depend on that."""
    directory = ground / "softreset"
    directory.mkdir()
    return Project.make(this_person(directory), 0)


@pytest.fixture
def project(one: Project) -> Project:
    """The same, without what the last test left."""
    (one.directory / ".envrc").unlink(missing_ok=True)
    return one


@needs_tmux
@pytest.mark.outside
@pytest.mark.parametrize("kind", HOSTILE)
def test_the_report_is_read_whatever_the_command_did_to_the_terminal(
    project: Project, kind: str
) -> None:
    """I11, by the screen of a real emulator. What was on it before is still there."""
    command = f"printf '{HOSTILE[kind]}'; echo evil > .envrc"
    run = shlex.join([str(program_of(project)), "run", "--trust", "--", "sh", "-c", command])
    with Emulator(project, f"{BEFORE}{run}\n") as screen:
        shown, drawn, modes = screen.lines(), screen.lines("-e"), screen.modes()
    at = shown.index("keyhole: files your host may execute, left or changed by this run:")
    path = project.directory / ".envrc"
    assert shown[at + 1] == f"keyhole: new: {path} (a shell runs it on entering the directory)"
    assert shown[at + 2].startswith("keyhole: `keyhole findings`")
    assert shown[at + 3].startswith("keyhole: session ")
    for line in drawn:
        if "new: " in line:
            # In colour, if any, but neither hidden nor in another character set.
            assert re.sub(r"\x1b\[(?:33|39|0|)m", "", line).rstrip() == shown[at + 1]
    assert modes == PLAIN
    for number in range(9):
        assert f"earlier line {number} of the person, with words in it" in shown[:at]


@needs_tmux
@pytest.mark.parametrize("kind", HOSTILE)
def test_without_a_reset_the_emulator_shows_the_harm(project: Project, kind: str) -> None:
    """The control: each of these does garble lines, hide them, or leave the terminal changed."""
    report = "".join(f"echo 'keyhole: line {n} of a report'\n" for n in range(3))
    with Emulator(project, f"{BEFORE}printf '{HOSTILE[kind]}'\n{report}") as screen:
        shown, drawn, modes = screen.lines(), screen.lines("-e"), screen.modes()
    whole = [f"keyhole: line {n} of a report" for n in range(3)]
    kept = [f"earlier line {n} of the person, with words in it" for n in range(9)]
    garbled = any(line not in drawn for line in whole) or any(line not in shown for line in kept)
    assert garbled or modes != PLAIN


@pytest.mark.outside
def test_the_terminal_is_reset_after_the_last_output_and_before_the_report(
    project: Project,
) -> None:
    """I11, by the bytes: first whatever is open is ended, then the rest."""
    script = "printf '\\033[?1049h\\033[1;2r\\033(0\\033]0;x'; echo evil > .envrc"
    with on_a_terminal(project, "sh", "-c", script) as screen:
        assert screen.wait() == 0
        seen = screen.seen
    marks = [
        "\x1b]0;x",
        "\x18\x1b\\",
        "\x1b[?1049l",
        "\x1b[r",
        "\x1b(B",
        "\x1b[m",
        "files your host",
    ]
    places = [seen.index(mark) for mark in marks]
    assert places == sorted(places), repr(seen)


@pytest.mark.outside
def test_nothing_is_written_into_a_pipe(project: Project) -> None:
    """Control: what the command printed is there, byte by byte."""
    done = project.shell("printf '\\033[?1049h'; echo evil > .envrc")
    assert done.out == "\x1b[?1049h"
    assert "\x1b" not in done.err
    assert "new: " in done.err


@pytest.mark.outside
def test_ordinary_output_leaves_the_cursor_where_it_is(project: Project) -> None:
    """Colours and progress lines need no new line at the bottom of the screen."""
    script = "printf '\\033[31mred\\033[m 10%%\\r\\033[K 20%%\\n'; echo evil > .envrc"
    with on_a_terminal(project, "sh", "-c", script) as screen:
        assert screen.wait() == 0
        assert "\x1b[999;1H" not in screen.seen
        assert "new: " in screen.seen


@pytest.mark.parametrize(
    ("pieces", "odd", "recoloured"),
    [([b"plain \r\n\t\x08"], False, False), ([b"\x1b[1;31mx\x1b[m\x1b[K"], False, False),
     (["é ü €".encode()], False, False), ([b"\x1b[H"], True, False), ([b"\x0e"], True, False),
     ([b"\xc2\x9b5r"], True, False), ([b"x\xc2", b"\x9d4;0;red"], True, True),
     ([b"\x1b", b"[H"], True, True), ([b"\x1b]0;title\x07" + b"x" * 20], True, False),
     ([b"\x1b]11;?\x1b\\" + b"x" * 20], True, False), ([b"\x1b]11;#000\x1b\\"], True, True),
     ([b"\x1b]4;7;#000\x1b\\"], True, True), ([b"\x1b]", b"4;7;#000\x07"], True, True),
     ([b"\x1b]00", b"4;7;#000\x07"], True, True), ([b"\x1b]P7000000"], True, True)],
)  # fmt: skip
def test_what_has_to_be_put_right_is_known_from_the_output(
    pieces: list[bytes], odd: bool, recoloured: bool
) -> None:
    """I11: also where a sequence is cut in two."""
    reset = SoftReset()
    for piece in pieces:
        reset.passed(piece)
    assert bool(reset.room()) is odd
    assert (b"\x1b]104" in reset.sequence()) is recoloured
    assert reset.sequence().startswith(b"\x18\x1b\\")
