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


def main(*, guarded: bool = False) -> int:
    """Run one command line and return its exit code.

    `guarded`: this process has hooks of its own for exceptions that nothing expects.
    """
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"keyhole {__version__}")
        return EXIT_OK
    if guarded:
        from keyhole.cli.faults import report
        from keyhole.system.faults import install

        install(report)
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
    """The installed command: `main`, one line instead of a traceback, and an end that does not take
    Python's modules apart first, which takes longer than many commands do."""
    _open_missing_streams()
    try:
        code = main(guarded=True)
    except Exception as error:  # noqa: BLE001 - the last frame of the process
        from keyhole.cli.faults import report

        code = report(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def _open_missing_streams() -> None:
    """Have /dev/null where a standard stream is closed (`keyhole run >&-`).

    Else the next file or socket that is opened gets its number: the command's output would go to
    whatever of ours that is.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
