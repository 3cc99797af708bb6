"""`keyhole up --foreground`: this process is the gateway."""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from keyhole import __version__
from keyhole.app.daemon.daemon import DaemonSettings, serve_daemon
from keyhole.cli.background import BackgroundProcess
from keyhole.cli.notify import VARIABLE, WATCHDOG, WATCHDOG_PROCESS, Notifier
from keyhole.cli.passphrase import passphrase_prompt
from keyhole.cli.verb_context import environment
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.app.containers.door_receiver_client import Expected
    from keyhole.app.remote.receiver_client import ListenAddress
    from keyhole.app.setup.host_paths import HostPaths


def serve_foreground(
    places: HostPaths,
    line: int | None,
    expected: Expected | None,
    workers: int,
    listen: ListenAddress | None = None,
) -> int:
    """Be the gateway until it is told to end. `line` is the socket to a waiting `keyhole up`."""
    env = environment()
    notifier = Notifier(env)
    for name in (VARIABLE, WATCHDOG, WATCHDOG_PROCESS):
        os.environ.pop(name, None)
    if line is None:
        ask = passphrase_prompt()
        ready, turned = notifier.ready, notifier.turned
        serving = DaemonSettings(
            places, env, ready, _report, ask, expected, turned, listen, workers
        )
        return _serve_managed(serving, notifier)
    return _serve_started(places, env, line, workers, listen)


def _serve_managed(serving: DaemonSettings, notifier: Notifier) -> int:
    """Serve for a service manager or a person: lines go to standard error."""
    try:
        return serve_daemon(serving)
    finally:
        notifier.close()


def _serve_started(
    places: HostPaths, env: dict[str, str], line: int, workers: int, listen: ListenAddress | None
) -> int:
    """Serve for the `keyhole up` that started this process: lines go to it and to the log."""
    first = f"keyhole {__version__} starts as process {os.getpid()}"
    process = BackgroundProcess(line, "keyhole up", first)
    ready = partial(process.ready, "ready")

    def serve() -> int:
        settings = DaemonSettings(
            places, env, ready, process.report, process.ask, listen=listen, workers=workers
        )
        code = serve_daemon(settings)
        process.log.report("ended")
        return code

    return process.serve(serve, "not started")


def _report(line: str) -> None:
    """Print on standard error, from where a service manager's log takes it."""
    with contextlib.suppress(OSError, ValueError):  # the reader is gone; sessions go on
        print(f"keyhole: {visible(line)}", file=sys.stderr, flush=True)
