"""`keyhole destroy NAME…`: ends named sandboxes, and removes their homes and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import find_sandbox
from keyhole.app.containers.supervisor import destroy_sandbox
from keyhole.cli.exit_codes import EXIT_OK, EXIT_UNUSABLE
from keyhole.cli.gateway_client import complain
from keyhole.cli.sandbox_end import end_sandbox
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME")


def run(options: argparse.Namespace) -> int:
    """Destroy each, even after one failed."""
    places = find_host_paths()
    code = EXIT_OK
    for name in dict.fromkeys(options.names):
        try:
            named = find_sandbox(places.sandboxes, name)
            if named.is_held():
                end_sandbox(named, "ended")
            destroy_sandbox(named, places)
        except Refused as error:
            complain(str(error))
            code = EXIT_UNUSABLE
        else:
            print(f"{name} is gone, with its home")
    return code
