"""`keyhole prune`: removes containers, networks and volumes that killed runs left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import print_json
from keyhole.cli.verb_context import environment, find_host_paths
from keyhole.model.text import visible
from keyhole.sandbox.containers.container_target import prune_engines

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Remove them, and print each."""
    found = prune_engines(environment(), find_host_paths().state)
    if options.json:
        print_json([{"id": e.id, "what": e.what, "session": e.session} for e in found])
        return EXIT_OK
    for each in found:
        of = f" of {each.session}" if each.session else ""
        print(visible(f"removed {each.what} {each.id}{of}"))  # labels come from images, too
    if not found:
        print("nothing is left behind")
    return EXIT_OK
