"""Draws docs/picture.svg: what a person types and reads on a terminal, from a real run.

With `--check` it only says whether the picture is stale. Called by `make docs` and by
tests/system/docs (I10).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scripts.make_docs import ROOT, Bench, steady

PLACE = ROOT / "docs" / "picture.svg"
COLUMNS = 100

POLICY = 'version = 1\n[services.anthropic]\nsecret = "store:anthropic"\n'
BEFORE = (
    "echo made-up-for-this-page-0123456789 | keyhole secret set anthropic --plain",
    "keyhole policy trust --trust",
)
"""Commands that are not shown."""
SHOWN = (
    "keyhole run -q -- printenv ANTHROPIC_API_KEY",
    "keyhole run -q -- getent hosts api.anthropic.com",
    "keyhole run -- getent hosts evil.example",
    "keyhole why POST https://api.anthropic.com/v1/messages",
    "keyhole log --denied -n 1",
)
_STAND_INS = (
    (r"sk-ant-api03-keyhole[\w-]+", "sk-ant-api03-keyhole…"),
    (r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}", "2026-07-01 09:30:00"),
    (r"(?<=09:30:00\x1b\[0m  )[0-9a-f]{8}", "5e55104d"),
    (r"audit head [0-9a-f]{64}", "audit head 8143745e…"),
)
"""What differs from run to run, beside what `make_docs` knows."""

FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})"
clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As rich's own frame, without fonts from elsewhere: a picture makes no requests."""


def on_terminal(bench: Bench, line: str) -> str:
    """What a command prints on a terminal, colours included."""
    pid, master = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        os.chdir(bench.project)
        env = bench.env | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
        os.execve("/bin/sh", ["sh", "-c", line], env)  # noqa: S606 - our own commands
    said = b""
    with contextlib.suppress(OSError):  # a terminal without a program ends so
        while data := os.read(master, 65536):
            said += data
    os.close(master)
    os.waitpid(pid, 0)
    return said.decode()


def picture() -> str:
    """The drawing."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        bench.write("keyhole.toml", POLICY)
        for line in BEFORE:
            bench.run(line)
        for line in SHOWN:
            said = on_terminal(bench, line)
            said = steady(_plain_controls(said))
            for pattern, stand_in in _STAND_INS:
                said = re.sub(pattern, stand_in, said)
            console.print(Text.assemble(("$ ", "bold green"), (line, "bold")))
            text = Text.from_ansi(said)
            text.rstrip()
            console.print(text)
            console.print()
    return console.export_svg(title="keyhole", code_format=FRAME, unique_id="keyhole")


def _plain_controls(said: str) -> str:
    """The text without the sequences that reset a terminal; colours stay."""
    said = said.replace("\r", "").replace("\x18", "")
    return re.sub(r"\x1b\\|\x1b\[(?![0-9;]*m)[0-9;?!]*[A-Za-z]", "", said)


def main() -> int:
    """Write, or with `--check` compare."""
    drawn = picture()
    if PLACE.exists() and PLACE.read_text("utf-8") == drawn:
        return 0
    if sys.argv[1:] == ["--check"]:
        print("docs/picture.svg is stale: `make docs` draws it", file=sys.stderr)
        return 1
    PLACE.write_text(drawn, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
