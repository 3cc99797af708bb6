"""Prints one entry of the audit log for a person.

Called by `log.py`, and by `demo.py` with the entries of its run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.cli.log_rows import text_row
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.audit.log_reader import LogEntry


def print_entry(entry: LogEntry) -> None:
    """Print the entry's line."""
    if entry.record is None:
        complain_of_line(entry)
    else:
        print(text_row(entry.record))


def complain_of_line(entry: LogEntry) -> None:
    """Say which line of the log is no event."""
    place = f"{visible(entry.file)}:{entry.line}"
    print(f"keyhole: {place} is no event; `keyhole log verify` says more", file=sys.stderr)
