"""`keyhole revoke ID…|--all`: closes sessions for good. Their sandboxes stay, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asking import asking, count, for_each
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Close the doors, and cut what is open."""
    if options.all == bool(options.ids):
        raise CliError("name the sessions to close (`keyhole ps` lists them), or --all")
    with asking() as client:
        if options.all:
            print(f"{count(client.revoke_all(), 'session')} closed; their connections are cut")
            return EXIT_OK
        return for_each(
            client, options.ids, client.revoke_session, "closed; its connections are cut"
        )
