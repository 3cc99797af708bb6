"""Shows questions on the desktop, until the person ends it or nothing is left to ask about.

Called by `watch --desktop`: by the person, or by a run in the background (`desktop_start.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from keyhole.app.desktop.bus_address import find_desktop_bus
from keyhole.app.setup.policy_file import wants_desktop
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.control.watchers import only_desktop

if TYPE_CHECKING:
    from typing import NoReturn

NO_LIBRARY = (
    "notifications need the Python package jeepney: pip install 'keyhole[desktop]'; "
    "`keyhole watch` shows questions in a terminal"
)
NO_DESKTOP = (
    "this is no session of a desktop: XDG_RUNTIME_DIR, DBUS_SESSION_BUS_ADDRESS and a display of "
    "this host are needed; `keyhole watch` shows questions in a terminal"
)


def show_on_desktop(*, until_idle: bool, line: int | None) -> int:
    """Show questions. `line` is a pipe whose reader waits until somebody can answer; it is closed
    however this ends. Raises CliError or ResourceUnusable."""
    try:
        from keyhole.app.desktop.desktop_watch import DesktopWatch
    except ModuleNotFoundError as error:
        if error.name != "jeepney":
            raise
        raise CliError(NO_LIBRARY) from None
    places, env = find_host_paths(), environment()
    if not wants_desktop(places):
        raise CliError("desktop.notifications is false in your config.toml")
    bus = find_desktop_bus(env)
    if bus is None:
        raise CliError(NO_DESKTOP)
    os.chdir("/")  # it may outlive what is mounted here
    signal.signal(signal.SIGTERM, _end)

    def ready() -> None:
        nonlocal line
        if line is not None:
            with contextlib.suppress(OSError):  # the run has ended meanwhile
                os.write(line, b"1")
                os.close(line)
            line = None
        elif sys.stdout.isatty():
            print("questions are shown on your desktop; Ctrl-C ends it", flush=True)

    with only_desktop(places.runtime), contextlib.suppress(KeyboardInterrupt):
        watch = DesktopWatch(places, bus, env.get("PATH", ""), _report)
        watch.run(ready, until_idle=until_idle)
    return EXIT_OK


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _end(_: int, __: object) -> NoReturn:
    """As Ctrl-C: what is shown is taken off the screen first."""
    raise KeyboardInterrupt
