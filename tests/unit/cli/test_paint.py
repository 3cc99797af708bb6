"""Output on a terminal or for a program."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import termios

from keyhole.cli.paint import json_text, print_below


def test_json_is_readable_and_takes_every_path() -> None:
    """A file name need not be UTF-8, and standard output takes nothing else."""
    assert json_text(["\u00e9"]) == '["\u00e9"]'
    text = json_text({"path": "/p/\u00e9\udcff"})
    assert text.isascii()
    assert json.loads(text) == {"path": "/p/\u00e9\udcff"}


def test_a_text_and_its_mark_go_on_below_themselves_on_a_terminal_alone() -> None:
    text, mark = "one two three four five six seven", "! mind it"
    head = "  subject  "
    plain = io.StringIO()
    print_below(head, text, mark, stream=plain)
    assert plain.getvalue() == f"{head}{text}  {mark}\n"
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("4H", 24, 30, 0, 0))
    with open(inner, "w") as terminal:
        print_below(head, text, mark, stream=terminal)
        terminal.flush()
        written = b""
        while mark.split()[-1].encode() not in written and select.select([outer], [], [], 10)[0]:
            written += os.read(outer, 4096)  # a terminal may give a write in parts
    os.close(outer)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).splitlines()
    assert max(map(len, shown)) <= 30
    assert all(line.startswith(" " * len(head)) for line in shown[1:])
    assert " ".join(" ".join(shown).split()) == f"subject {text} {mark}"
