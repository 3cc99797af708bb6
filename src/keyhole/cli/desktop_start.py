"""Starts the process that shows questions on the desktop, unless one of this user's runs.

Called by the verbs that begin sandboxes. It belongs to the user and not to one run: it shows the
questions of all, and ends by itself a while after the last. No data plane touches the bus.
"""

from __future__ import annotations

import os
import select
import sys

from keyhole.app.desktop.bus_address import PASSED, find_desktop_bus
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.watchers import has_desktop

READY_SECONDS = 2.0
"""How long a run waits for it at most, so that the first question of a command finds somebody to
answer it. It starts beside the run, which takes about as long, and later runs find it there."""


class DesktopStart:
    """A process that is starting."""

    def __init__(self, line: int) -> None:
        self._line = line

    def wait(self) -> None:
        """Wait until it shows questions, has found that it cannot, or is too slow. A second call
        does nothing."""
        line, self._line = self._line, -1
        if line >= 0:
            select.select([line], [], [], READY_SECONDS)
            os.close(line)


def start_desktop() -> DesktopStart | None:
    """Start it; None where there is no desktop, or it runs already."""
    if find_desktop_bus(os.environ) is None or has_desktop(find_host_paths().runtime):
        return None
    # -P and -I: not out of the current directory, which a sandbox may have written (I11).
    program = [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", "keyhole"]
    env = {name: os.environ[name] for name in PASSED if name in os.environ}
    line, theirs = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.set_inheritable(theirs, True)
        words = [*program, "watch", "--desktop", "--until-idle", "--line", str(theirs)]
        actions = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
        os.posix_spawn(sys.executable, words, env, file_actions=actions, setsid=True)
    except OSError:
        os.close(line)  # questions are in `keyhole watch` all the same
        return None
    finally:
        os.close(null)
        os.close(theirs)
    return DesktopStart(line)
