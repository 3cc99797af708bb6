"""`keyhole changes`: shows the changes that are held for review, as a list and as a diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.changes.apply_plan import Selection
from keyhole.changes.difference import is_text, unified_lines
from keyhole.changes.entry import ChangeKind, EntryKind
from keyhole.cli.change_rows import (
    add_path_arguments,
    as_json,
    auditing,
    change_rows,
    find_store,
    named_paths,
    shown_path,
)
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import notice, paint, print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.model.quantity import format_size
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from keyhole.changes.entry import FileChange
    from keyhole.changes.transaction import ReviewedPair

MAX_DIFF = 1 << 20
"""Bytes of a file that is shown as a diff."""
MAX_DIFF_LINES = 5000
"""Lines of all diffs together; a person names a path to see more."""

_COLUMNS = (Column("CHANGE"), Column("PATH", Fit.WRAPPED), Column("NOTE", Fit.WRAPPED))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_path_arguments(parser)
    parser.add_argument("--stat", action="store_true", help="only the list, without the diff")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Show the changes."""
    store = find_store(options)
    if not store.exists:
        named_paths(options, ())
        print_json([]) if options.json else _list([])
        return EXIT_OK
    try:
        busy = store.busy
        if store.uncollected and not busy:
            with auditing(store) as audit, store.holding("`keyhole changes`"):
                audit.record_recovered()  # a run was killed: its copies are read first
        changes = store.changes()
        if options.paths:
            chosen = Selection(named_paths(options, changes))
            changes = [change for change in changes if chosen.covers(change)]
        if options.json:
            print_json([as_json(change) for change in changes])
            return EXIT_OK
        if busy and store.uncollected:
            notice(f"{busy} still runs on a copy: its changes are listed when it has ended")
        elif busy:
            notice(f"{busy} still runs: this is how far it is")
        _list(changes)
        if not options.stat:
            with store.contents() as pairs:
                _print_diffs(changes, pairs, whole=bool(options.paths))
    except BrokenPipeError:
        raise  # the reader is gone
    except OSError as error:
        raise CliError(f"the changes cannot be read: {visible(str(error))}") from None
    return EXIT_OK


def _list(changes: Sequence[FileChange]) -> None:
    rows = tuple(
        (
            cell(row.change, "yellow" if row.first else ""),
            cell(row.path),
            cell(row.note, "yellow" if row.first else ""),
        )
        for row in change_rows(changes)
    )
    below = "`keyhole apply [PATH…]` takes them over, `keyhole discard [PATH…]` drops them"
    show([Grid(_COLUMNS, rows, below if rows else "no changes are held for review")])


def _print_diffs(
    changes: Sequence[FileChange], pairs: dict[str, ReviewedPair], *, whole: bool
) -> None:
    left = MAX_DIFF_LINES
    for change in changes:
        if not whole and "/.git/" in f"/{change.name}":
            continue
        lines = list(_diff(change, pairs[change.tree]))
        if not lines:
            continue
        if len(lines) > left:
            print("\n… and more; name a PATH to see its diff")
            return
        left -= len(lines)
        print()
        for line in lines:
            print(paint(line, _STYLES[line[0]]) if line[0] in _STYLES else line)


_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def _diff(change: FileChange, pair: ReviewedPair) -> Iterator[str]:
    if EntryKind.FILE not in (change.kind, change.was) or change.unreadable:
        return
    old = new = b""
    name = shown_path(change.path)
    try:
        if change.was is EntryKind.FILE:
            old = pair.lower.read(change.name, MAX_DIFF + 1)
        if change.change is not ChangeKind.REMOVED and change.kind is EntryKind.FILE:
            new = pair.upper.read(change.name, MAX_DIFF + 1)
    except OSError:
        return  # it has changed meanwhile
    if max(len(old), len(new)) > MAX_DIFF:
        lines = [f"(not shown: it has more than {format_size(MAX_DIFF)})"]
    elif not (is_text(old) and is_text(new)):
        lines = ["(not shown: it is binary, with a byte 0)"]
    else:
        lines = unified_lines(old, new)
    if lines:
        yield f"--- {name if change.was is EntryKind.FILE else '(none)'}"
        yield f"+++ {name if change.change is not ChangeKind.REMOVED else '(none)'}"
        yield from lines
