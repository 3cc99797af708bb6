"""A terminal in front of a command: its width, what is typed, and all that it shows."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = str(Path(sys.executable).with_name("keyhole"))
"""The installed command."""


def on_terminal(
    words: Sequence[str],
    env: dict[str, str],
    cwd: Path,
    typed: Sequence[tuple[str, str]] = (),
    size: tuple[int, int] = (24, 80),
    whenever: tuple[str, str] | None = None,
) -> tuple[int, str]:
    """Exit code and output; of `typed`, each pair is what to wait for and what to type then.

    `whenever` is a question that may come, and its answer.
    """
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        os.chdir(cwd)
        os.execve(words[0], list(words), {"TERM": "xterm-256color"} | env)  # noqa: S606
    text, waiting, seen = "", list(typed), 0
    deadline = time.monotonic() + PATIENCE
    while select.select([master], [], [], max(deadline - time.monotonic(), 0))[0]:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        text += data.decode()
        if waiting and waiting[0][0] in text[seen:]:
            seen = len(text)
            os.write(master, waiting.pop(0)[1].encode())
        if whenever and whenever[0] in text[seen:]:
            seen = len(text)
            os.write(master, whenever[1].encode())
    os.close(master)
    assert not waiting, text
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text
