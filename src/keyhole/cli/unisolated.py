"""`keyhole run --unsafe-no-isolation -- CMD…`: runs one command without a sandbox, and says so.

Called by `run.py`. Flags about a policy or a sandbox are refused beside it, so that nobody believes
that they hold. The warnings are printed even with `--quiet`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.run.unisolated import run_unisolated
from keyhole.cli.errors import CliError
from keyhole.cli.paint import notice
from keyhole.cli.verb_context import environment, find_host_paths
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

_OTHERS = ("policy", "trust", "runtime", "image", "self_test", "own_gateway", "publish")
"""Flags that mean something only with a sandbox."""


def run(options: argparse.Namespace, command: tuple[str, ...]) -> int:
    """Print what is lost, and run the command."""
    beside = [f"--{name.replace('_', '-')}" for name in _OTHERS if getattr(options, name)]
    if beside:
        words = "there is no sandbox and no policy that it could be about"
        raise CliError(f"{FLAG} goes without {' and '.join(beside)}: {words}")
    who = "root" if os.geteuid() == 0 else "you"
    for line in LOST:
        notice(line.format(who=who), "red")
    ended = run_unisolated(command, environment(), find_host_paths().audit)
    if ended.error:
        notice(f"{visible(command[0])}: {ended.error}")
    if not options.quiet:
        notice(f"session {ended.session}, audit head {ended.head}")
    return ended.code
