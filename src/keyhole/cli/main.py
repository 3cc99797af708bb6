"""The entry point. It imports almost nothing until the verb is known, because start-up counts."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from keyhole import __version__
from keyhole.cli.exit_codes import EXIT_INTERRUPTED, EXIT_OK
from keyhole.system.faults import install
from keyhole.system.startup import collect_rarely, leave


def main(*, guarded: bool = False) -> int:
    """Run one command line and return its exit code.

    `guarded`: install hooks that report exceptions which nothing catches.
    """
    arguments = sys.argv[1:] or ["--help"]
    if arguments in (["--version"], ["-V"]):
        print(f"keyhole {__version__}")
        return EXIT_OK
    if guarded:
        from keyhole.cli.faults import report

        install(report)
    from keyhole.cli.parser import parser_for, run_verb

    parser = parser_for(arguments)
    try:
        return run_verb(parser, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `keyhole services | head`: the reader has closed the pipe.
        sys.stderr.close()
        return EXIT_OK


def entry() -> NoReturn:
    """The installed command: runs `main`, and prints one line instead of a traceback."""
    collect_rarely()
    _open_missing_streams()
    try:
        code = main(guarded=True)
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        from keyhole.cli.faults import report

        code = report(error)
    leave(code)


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that is closed (`keyhole run >&-`).

    Otherwise the next file or socket that Keyhole opens gets descriptor 1, and the command's output
    is written to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
