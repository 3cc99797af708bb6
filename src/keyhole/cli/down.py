"""`keyhole down`: ends the gateway and every session, and returns when its process is gone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.cli.amounts import count
from keyhole.cli.errors import CliError, exit_code
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.gateway_client import failure, open_gateway_client
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.client import ControlFailed, NoGateway, RequestDeclined
from keyhole.control.exec_socket import remove_leftover_sockets
from keyhole.system.processes import has_ended

if TYPE_CHECKING:
    import argparse

    from keyhole.control.client import ControlClient

END_SECONDS = 30.0
"""How long a gateway may take to end its sessions and close its log; it takes about a second."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`down` has no flags."""


def run(_: argparse.Namespace) -> int:
    """End the gateway; no running gateway is success, not an error."""
    with open_gateway_client() as client:
        try:
            status = client.status()
        except NoGateway:
            print("no gateway is running, so there is nothing to end")
            return EXIT_OK
        try:
            # Opened first: once the gateway has ended, its number may belong to another process.
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
    remove_leftover_sockets(find_host_paths().runtime)
    print(f"the gateway has ended, and {count(status.sessions, 'session')} with it")
    return EXIT_OK


def _stop(client: ControlClient) -> None:
    try:
        client.stop_gateway()
    except NoGateway:
        return  # another process ended it first
    except RequestDeclined as error:
        if error.error != "stopping":
            raise
    except ControlFailed as error:
        # The gateway may end before it has answered; run() waits for its process in any case.
        if "hung up" not in str(error):
            raise CliError(failure(error), exit_code(error)) from None


def _ended(process: int, seconds: float) -> bool:
    return has_ended(process, seconds)
