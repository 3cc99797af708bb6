"""`keyhole resume ID…`: opens sessions again that were frozen because a decoy was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.gateway_client import find_gateways, for_each

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="of a session (its first letters do)")


def run(options: argparse.Namespace) -> int:
    """Let connections pass again."""
    with find_gateways() as endpoints:
        return for_each(
            endpoints, options.ids, lambda each, session: each.resume(session), "goes on"
        )
