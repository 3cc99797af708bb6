"""`keyhole completion SHELL`: a completion script, made from the parser itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shtab

from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import build_parser

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    print(shtab.complete(build_parser(), shell=options.shell))
    return EXIT_OK
