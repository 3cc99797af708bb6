"""Whether a program has the screen, by its output alone."""

from __future__ import annotations

import pytest

from keyhole.sandbox.screen_modes import ScreenModes


def after(*pieces: bytes) -> tuple[bool, bool]:
    modes = ScreenModes()
    for piece in pieces:
        modes.passed(piece)
    return modes.alternate, modes.taken


@pytest.mark.parametrize(
    ("output", "alternate", "taken"),
    [
        (b"plain \x1b[31mred\x1b[m\r\n", False, False),
        (b"\x1b[?1049h", True, True),
        (b"\x1b[?47h", True, True),
        (b"\x1b[?1049h\x1b[?1049l", False, False),
        (b"\x1b[?1049;2004h\x1b[?1049l", False, True),
        (b"\x1b[?25l", False, True),
        (b"\x1b[?25l\x1b[?25h", False, False),
        (b"\x1b[?2004h$ ls\r\n\x1b[?2004l", False, False),
        (b"\x1b[?1049h\x1bc", False, False),
        (b"\x1b[?7h\x1b[?12l", False, False),
        (b"\x1b[?" + b"9" * 200 + b"h", False, False),
    ],
)
def test_modes_are_followed_in_any_pieces(output: bytes, alternate: bool, taken: bool) -> None:
    assert after(output) == (alternate, taken)
    assert after(*(output[i : i + 1] for i in range(len(output)))) == (alternate, taken)
    for at in range(len(output)):
        assert after(output[:at], output[at:]) == (alternate, taken)
