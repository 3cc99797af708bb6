"""`keyhole help [VERB [ACTION]]`: the same as `keyhole VERB ACTION --help`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.parser import parser_for

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="VERB", help="and its action, if it has any")


def run(options: argparse.Namespace) -> int:
    """Print the help of a verb, or the list of all."""
    # argparse prints it and exits; a verb that does not exist gets a suggestion there.
    parser_for(options.words).parse_args([*options.words, "--help"])
    return EXIT_OK
