"""The entry point. It imports next to nothing until the verb is known: it must be quick."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NoReturn

from keyhole import __version__

EXIT_OK = 0
EXIT_DENIED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


def main() -> int:
    """Run one command line and return its exit code."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"keyhole {__version__}")
        return EXIT_OK
    from keyhole.cli.parser import build_parser, run_verb

    parser = build_parser(arguments[0] if arguments else None)
    try:
        return run_verb(parser, arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `keyhole services | head`: the reader has seen enough.
        sys.stderr.close()
        return EXIT_OK


def entry() -> NoReturn:
    """The installed command: `main`, and an end that does not take Python's modules apart first,
    which takes longer than many commands do."""
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)
