"""`keyhole run --unsafe-no-isolation -- CMD…`: once, without a sandbox, and said so.

Called by `run.py`. Everything that a policy or a sandbox would decide is refused beside it, so that
nobody believes it holds. What is lost is said to a quiet person, too.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from keyhole.app.unisolated import run_here
from keyhole.cli.paint import paint
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

FLAG = "--unsafe-no-isolation"

LOST = (
    "UNSAFE: there is no sandbox: the command runs on this host as {who}",
    "lost: it can read, change and send all files of yours, and use every key and login in them",
    "lost: it reaches every host; no request is judged, limited or written down",
    "lost: what it leaves for your host to execute later is not looked for",
    "kept: no policy and no secret is read, so it is given none: neither a service's nor a stored "
    "one; your own variables it has",
)

_OTHERS = ("policy", "trust", "runtime", "image", "self_test", "own_gateway")
"""Flags that mean something for a sandbox alone."""


def run(options: argparse.Namespace, command: tuple[str, ...], refused: int) -> int:
    """Say what is lost, and run it; `refused` is the exit code for what cannot be."""
    beside = [f"--{name.replace('_', '-')}" for name in _OTHERS if getattr(options, name)]
    if beside:
        words = "there is no sandbox and no policy that it could be about"
        raise CliError(f"{FLAG} goes without {' and '.join(beside)}: {words}", refused)
    who = "root" if os.geteuid() == 0 else "you"
    for line in LOST:
        _tell(line.format(who=who), "red")
    ended = run_here(command, environment(), find_places().audit)
    if ended.error:
        _tell(f"{visible(command[0])}: {ended.error}", "yellow")
    if not options.quiet:
        _tell(f"session {ended.session}, audit head {ended.head}", "yellow")
    return ended.code


def _tell(line: str, colour: str) -> None:
    sys.stderr.write(f"{paint('keyhole:', colour, stream=sys.stderr)} {line}\n")
    sys.stderr.flush()
