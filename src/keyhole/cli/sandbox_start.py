"""Starts a named sandbox in the background, for `keyhole new` and `keyhole start`.

Every question to the person comes first: the supervisor, which runs `keyhole start --line`, has no
terminal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.cli import background
from keyhole.cli.background import person_asked, show_last_lines
from keyhole.cli.consent import require_accepted
from keyhole.cli.desktop_start import start_desktop
from keyhole.cli.errors import CliError
from keyhole.cli.gateway_log import open_log
from keyhole.cli.named_policy import read_policy
from keyhole.cli.paint import notice
from keyhole.cli.startup_channel import StartingUser, start
from keyhole.cli.verb_context import environment
from keyhole.model.errors import SetupFailed
from keyhole.model.text import visible

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.app.containers.named_sandbox import NamedSandbox
    from keyhole.app.setup.host_paths import HostPaths
    from keyhole.app.setup.policy_file import PolicyFile


def accept_policy(path: Path | None, places: HostPaths, flag: str | None) -> PolicyFile:
    """Read a policy, and have it accepted unless it is already (I11)."""
    file = read_policy(path, places, FileCatalogue())
    require_accepted(file, places, flag, "nothing was started")
    return file


def start_supervisor(named: NamedSandbox) -> None:
    """Start a supervisor that runs the sandbox; CliError with its message if it fails."""

    def tell(line: str) -> None:
        notice(visible(line))

    log = open_log(named.log)
    written = os.fstat(log).st_size
    try:
        start(
            (*background.PROGRAM, "start", named.name),
            environment(),
            log,
            StartingUser(tell, person_asked()),
        )
    except SetupFailed as error:
        words = visible(str(error))
        if not words:
            show_last_lines(log, written)
            words = "its supervisor ended before it ran"
        raise CliError(f"{named.name} was not started: {words}") from None
    finally:
        os.close(log)
    start_desktop()
