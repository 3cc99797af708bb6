"""`keyhole version`: the same as `keyhole --version`."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from keyhole import __version__
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import print_json

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the version; `--json` adds Python's and the kernel's, for a report."""
    if options.json:
        found = {"id": "keyhole", "version": __version__, "python": platform.python_version()}
        print_json(found | {"kernel": platform.release(), "machine": platform.machine()})
    else:
        print(f"keyhole {__version__}")
    return EXIT_OK
