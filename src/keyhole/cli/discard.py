"""`keyhole discard`: drops changes that were held for review."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from keyhole.changes.apply_plan import Selection
from keyhole.cli.change_rows import (
    add_path_arguments,
    auditing,
    find_store,
    named_paths,
    say_recovered,
)
from keyhole.cli.consent import ask
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.model.errors import KeyholeError
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.changes.change_store import ChangeStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_path_arguments(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask on a terminal")


def run(options: argparse.Namespace) -> int:
    """Drop them for good."""
    store = find_store(options)
    if not store.exists:
        print("no changes are held for review")
        return EXIT_OK
    if not options.paths and not options.yes:
        _confirm(store)
    try:
        # All of them: also what cannot be read.
        collects = bool(options.paths)
        with auditing(store) as audit, store.holding("`keyhole discard`", collects=collects):
            audit.record_recovered()
            say_recovered(store)
            if not options.paths:
                with audit.recording_failure("discard"):
                    store.discard(None)
                audit.record("discarded", which="all")
                store.empty_trash()
                print("discarded every change")
                return EXIT_OK
            changes = store.changes(marks=False)
            chosen = Selection(named_paths(options, changes))
            dropped = [change for change in changes if chosen.covers(change)]
            with audit.recording_failure("discard"):
                store.discard(dropped)
            audit.record("discarded", dropped)
            store.empty_trash()
    except OSError as error:
        raise CliError(f"the changes cannot be discarded: {visible(str(error))}") from None
    print(f"discarded {len(dropped)} change{'' if len(dropped) == 1 else 's'}")
    return EXIT_OK


def _confirm(store: ChangeStore) -> None:
    """On a terminal, ask before everything is deleted: one word could cost a day's work."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    what = "every change that is held"
    with contextlib.suppress(KeyholeError, OSError):  # it is asked about, read or not
        number = len(store.changes(marks=False))
        if not number and not store.uncollected:
            return
        what = f"{what} ({number})" if number else what
    if not ask(f"delete {what}? This cannot be undone.", stream=sys.stderr):
        raise CliError("nothing was discarded")
