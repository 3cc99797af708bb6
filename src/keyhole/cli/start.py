"""`keyhole start NAME`: starts a named sandbox again, in the background.

It runs `keyhole start --line` in a session of its own, which is the sandbox's supervisor; so does
`keyhole new`. Every question to the person comes before that.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import find_sandbox
from keyhole.cli.background import BackgroundProcess
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_name_argument, add_trust_flag
from keyhole.cli.pull_progress import pull_display
from keyhole.cli.sandbox_start import accept_policy, start_supervisor
from keyhole.cli.verb_context import environment, find_host_paths

if TYPE_CHECKING:
    from keyhole.app.containers.named_sandbox import NamedSandbox, SandboxRecord
    from keyhole.app.setup.host_paths import HostPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_name_argument(parser)
    add_trust_flag(parser)
    # The descriptor by which a supervisor speaks to the verb that started it.
    parser.add_argument("--line", type=int, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Start the sandbox, or be its supervisor."""
    places = find_host_paths()
    named = find_sandbox(places.sandboxes, options.name)
    if options.line is not None:
        return _supervise(named, places, options.line)
    record = named.record()
    if named.is_held():
        raise CliError(f"{named.name} runs already; `keyhole ps` says more")
    accept_policy(Path(record.policy), places, options.trust)
    if record.contained:
        _have_image(record)
    start_supervisor(named)
    print(f"{named.name} runs")
    return EXIT_OK


def _have_image(record: SandboxRecord) -> None:
    """Pull the image if it was removed; here, because the supervisor cannot show progress."""
    from keyhole.sandbox.containers.container_target import ensure_image

    ensure_image(record.runtime, record.engine, record.image, pull_display())


def _supervise(named: NamedSandbox, places: HostPaths, line: int) -> int:
    """Be the supervisor until the sandbox ends; `line` is the socket to the verb that waits."""
    from keyhole.app.containers.supervisor import StartListener, supervise

    process = BackgroundProcess(line, "keyhole start NAME", f"process {os.getpid()} starts")
    ready = partial(process.ready, "it runs")
    listener = StartListener(ready, process.report, process.log.report, process.ask)

    def serve() -> int:
        supervise(named, places, environment(), listener)
        return EXIT_OK

    return process.serve(serve, "not started, or ended")
