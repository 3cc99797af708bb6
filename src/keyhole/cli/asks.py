"""`keyhole asks`: lists what waits for your answer, of every sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.ask_rows import ask_json, ask_line
from keyhole.cli.asks_found import find_asks
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import find_gateways
from keyhole.cli.paint import print_json

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the questions."""
    with find_gateways() as endpoints:
        found = [ask for ask, _ in find_asks(endpoints)]
    if options.json:
        print_json([ask_json(ask) for ask in found])
        return EXIT_OK
    for ask in found:
        print(ask_line(ask))
    if found:
        print("`keyhole approve ID` and `keyhole deny ID` answer; `keyhole watch` shows more")
    else:
        print("nothing waits for an answer")
    return EXIT_OK
