"""`keyhole undo`: takes the last `keyhole apply` back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.cli.change_rows import auditing, find_store, say_recovered, shown_path
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.paint import notice
from keyhole.model.text import visible
from keyhole.system.interrupts import note_interrupts

if TYPE_CHECKING:
    import argparse

EXIT_LEFT = 1
"""Something was not restored, because the person changed it since."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        help="of the project (default: keyhole.toml here or above)",
    )


def run(options: argparse.Namespace) -> int:
    """Restore the files; exit 1 if some were changed since and are left."""
    store = find_store(options)
    if not store.exists:
        raise CliError("there is no apply to undo")
    try:
        with auditing(store) as audit, store.holding("`keyhole undo`"):
            audit.record_recovered()
            say_recovered(store)
            with audit.recording_failure("undo"), note_interrupts():
                outcome = store.undo()
            audit.record("undone", steps=outcome.done, left=len(outcome.left))
            store.empty_trash()
    except OSError as error:
        raise CliError(f"the apply cannot be undone: {visible(str(error))}") from None
    before = "; `keyhole undo` takes back the apply before it, too" if store.can_undo else ""
    print(f"undone; its changes are held for review again{before}", flush=True)
    for path in outcome.left:
        notice(f"left as it is, since you changed it: {shown_path(path)}")
    return EXIT_LEFT if outcome.left else EXIT_OK
