"""`keyhole apply`: takes changes that were held for review over into the person's files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.changes.apply_plan import Selection, plan_apply
from keyhole.cli.change_rows import (
    add_path_arguments,
    auditing,
    find_store,
    held_lines,
    named_paths,
    say_recovered,
    shown_path,
)
from keyhole.cli.consent import ask
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.paint import notice
from keyhole.model.text import visible
from keyhole.system.interrupts import note_interrupts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keyhole.app.run.change_audit import ChangeAudit
    from keyhole.changes.change_store import ApplyOutcome, ChangeStore
    from keyhole.changes.entry import ApplyPlan, FileChange

EXIT_HELD = 1
"""Something that was chosen was not applied."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_path_arguments(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="even if you changed the file, too; needs its PATH",
    )
    parser.add_argument(
        "--yes", action="store_true", help="do not ask about files that this host may execute"
    )


def run(options: argparse.Namespace) -> int:
    """Apply the changes; exit 1 if some that were chosen are held back."""
    if options.replace and not options.paths:
        raise CliError("name the files to replace: `keyhole apply --replace PATH…`")
    store = find_store(options)
    if not store.exists:
        print("no changes are held for review")
        return EXIT_OK
    try:
        with auditing(store) as audit, store.holding("`keyhole apply`"):
            audit.record_recovered()
            say_recovered(store)
            changes = store.changes()
            named = named_paths(options, changes)
            plan = plan_apply(changes, Selection(named, options.replace))
            _confirm([c for c in plan.chosen if c.executed is not None], yes=options.yes)
            outcome = _apply(store, plan, audit)
            store.empty_trash()
    except OSError as error:
        raise CliError(f"the changes cannot be applied: {visible(str(error))}") from None
    count = len(plan.chosen)
    if outcome.done:
        applied = "1 change" if count == 1 else f"{count} changes"
        print(
            f"applied {applied}; to take {'it' if count == 1 else 'them'} back: keyhole undo",
            flush=True,
        )
    elif not plan.held and not store.recovered:
        print("no changes are held for review")
    held = [(each.change, each.reason) for each in plan.held]
    for line in held_lines(held):
        notice(line)
    for path in outcome.left:
        notice(f"not applied: {shown_path(path)} (you changed it at this moment)")
    return EXIT_HELD if held or outcome.left else EXIT_OK


def _apply(store: ChangeStore, plan: ApplyPlan, audit: ChangeAudit) -> ApplyOutcome:
    # Ctrl-C takes back what was written so far: half an apply would be finished by the next one.
    with audit.recording_failure("apply"), note_interrupts() as stopped:
        outcome = store.apply(plan, stopped)
    if plan.chosen:
        held = len(plan.held)
        audit.record("applied", plan.chosen, held=held, left=len(outcome.left))
    return outcome


def _confirm(executed: Sequence[FileChange], *, yes: bool) -> None:
    """Have a person confirm what the host may execute (I11)."""
    if not executed or yes:
        return
    print("your host may execute:", file=sys.stderr)
    for change in executed:
        why = change.executed.why if change.executed else ""
        print(f"  {change.change}: {shown_path(change.path)} ({visible(why)})", file=sys.stderr)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError("nothing was applied: no terminal to ask on; --yes accepts it")
    if not ask("apply it?", stream=sys.stderr):
        raise CliError("nothing was applied")
