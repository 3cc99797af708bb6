"""Opens a link in the person's browser, without showing it to other users of this host."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from keyhole.system.programs import find_program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DISPLAYS = ("WAYLAND_DISPLAY", "DISPLAY")
"""Variables of a desktop."""


def find_browser(env: Mapping[str, str]) -> Path | None:
    """The program that opens a page on this desktop; None if there is no desktop or program."""
    return find_program("xdg-open") if any(env.get(name) for name in DISPLAYS) else None


def open_page(program: Path, page: Path) -> None:
    """Have the desktop open a file of this user's."""
    subprocess.Popen(  # noqa: S603 - a program of the system, with a path of our own
        [str(program), page.as_uri()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
