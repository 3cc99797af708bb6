"""Reports an exception that Keyhole did not expect: one line, details in a file, exit code 125."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from keyhole import __version__
from keyhole.model.text import visible
from keyhole.system.faults import EXIT_FAULT, describe, explain

if TYPE_CHECKING:
    from pathlib import Path

MAX_REPORTS = 20
"""Reports that are kept; a new one replaces the oldest."""

MAX_TOLD = 3
"""Lines that one process prints: a loop that keeps failing must not flood the terminal."""

_told = 0


def report(error: BaseException) -> int:
    """Print one line, write the details to a file, and return the exit code."""
    global _told
    _told += 1
    if _told > MAX_TOLD:
        return EXIT_FAULT
    where = None
    with contextlib.suppress(Exception):  # the state directory itself may be broken
        where = _keep(explain(error))
    if where is None:
        details = "the details could not be written to the state directory"
    else:
        details = f"please report it with {visible(str(where))}, which holds no secret"
    line = f"keyhole: an error in Keyhole itself: {describe(error)}; {details}"
    with contextlib.suppress(OSError, ValueError):
        # A terminal that a command made raw needs the carriage return.
        sys.stderr.write(f"{line}\r\n" if os.isatty(2) else f"{line}\n")
        sys.stderr.flush()
    return EXIT_FAULT


def _keep(details: str) -> Path:
    from keyhole.cli.verb_context import find_host_paths

    directory = find_host_paths().faults
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(directory.glob("*.txt"))[: -(MAX_REPORTS - 1)]:
        old.unlink(missing_ok=True)
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}-{_told}.txt"
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    host = os.uname()
    head = (
        f"keyhole {__version__}, verb {verb!a}\n"
        f"Python {sys.version.split()[0]}, {host.sysname} {host.release} {host.machine}\n\n"
    )
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(directory / name, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(head + details)
    return directory / name
