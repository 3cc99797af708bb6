"""`keyhole down`: ends the gateway and every session, and returns when its process is gone."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from keyhole.cli.asking import asking, count, exit_code, failure
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.control.client import ControlFailed, Declined, NoGateway

if TYPE_CHECKING:
    import argparse

    from keyhole.control.client import Client

END_SECONDS = 30.0
"""How long a gateway may take to end its sessions and close its log; it takes about a second."""


def run(_: argparse.Namespace) -> int:
    """Nothing to end is no error: it is what was asked for."""
    with asking() as client:
        try:
            status = client.status()
        except NoGateway:
            print("no gateway is running, so there is nothing to end")
            return EXIT_OK
        try:
            # Before it is told to end: a number alone may be another process's by then.
            process = os.pidfd_open(status.pid)
        except ProcessLookupError:
            process = None
        try:
            _stop(client)
            if process is not None and not _ended(process, END_SECONDS):
                raise CliError(
                    f"the gateway, process {status.pid}, did not end within {END_SECONDS:g} s;"
                    f" `kill -9 {status.pid}` ends it, and no sandbox has a way out then"
                )
        finally:
            if process is not None:
                os.close(process)
    print(f"the gateway has ended, and {count(status.sessions, 'session')} with it")
    return EXIT_OK


def _stop(client: Client) -> None:
    try:
        client.stop_gateway()
    except NoGateway:
        return  # somebody else was quicker
    except Declined as error:
        if error.error != "stopping":
            raise
    except ControlFailed as error:
        # It may end before its answer has left; whether it did is seen by its process.
        if "hung up" not in str(error):
            raise CliError(failure(error), exit_code(error)) from None


def _ended(process: int, seconds: float) -> bool:
    return bool(select.select([process], [], [], seconds)[0])
