"""Changes that are held for review, as rows, lines and JSON, and the paths that a person names.

Used by `keyhole changes`, `apply`, `discard` and `undo`. All names and texts are hostile.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.app.run.change_audit import auditing_changes
from keyhole.app.run.held_changes import change_store, recovered_lines
from keyhole.app.setup.host_paths import find_policy
from keyhole.changes.apply_plan import MAX_UNNAMED
from keyhole.changes.entry import ChangeKind, EntryKind, FileChange, HoldReason
from keyhole.cli.errors import CliError
from keyhole.cli.paint import notice
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.quantity import format_size
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse
    import contextlib
    from collections.abc import Iterable, Sequence

    from keyhole.app.run.change_audit import ChangeAudit
    from keyhole.changes.change_store import ChangeStore

FOLDED_FROM = 10
"""Entries of one new or removed directory from which on it is one row."""

MAX_HELD_LINES = 40
"""Changes that are named when they are held back; the others are counted."""

HELD = {
    HoldReason.CONFLICT: "you changed it, too: `keyhole apply --replace PATH` takes the sandbox's, "
    "`keyhole discard PATH` keeps yours",
    HoldReason.REPOSITORY: "you staged or committed something, too: `keyhole apply --replace "
    "DIR/.git` takes the sandbox's commits and index, `keyhole discard DIR/.git` keeps yours",
    HoldReason.EXECUTED: "your host may execute it: apply it by its own name",
    HoldReason.LEADS_OUT: "a link that leads out of the project: apply it by its own name",
    HoldReason.SPECIAL: "a pipe, a socket, a device or too deep: it is never applied",
    HoldReason.LARGE: "it is large: apply it by its own name",
    HoldReason.UNREADABLE: "it cannot be read",
    HoldReason.BLOCKED: "its directory is not applied, or something in its place is kept",
}


class ChangeRow(Struct, frozen=True):
    """One row: a change, or a directory with all its changes."""

    change: str
    path: str
    note: str
    first: bool = False
    """Whether it is for the person to look at first."""


def add_path_arguments(parser: argparse.ArgumentParser) -> None:
    """The paths that a person chooses, and the policy whose changes they are."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these (default: all)")
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        help="of the project (default: keyhole.toml here or above)",
    )


def find_store(options: argparse.Namespace) -> ChangeStore:
    """The changes of the policy that was named, or that is found here."""
    places = find_host_paths()
    return change_store(places.changes, options.policy or find_policy(Path.cwd(), places.home))


def auditing(store: ChangeStore) -> contextlib.AbstractContextManager[ChangeAudit]:
    """The audit log for an act on these changes (I8)."""
    return auditing_changes(find_host_paths().audit, store)


def say_recovered(store: ChangeStore) -> None:
    """Say what was finished for a process that was killed."""
    for line in recovered_lines(store):
        notice(line)


def named_paths(options: argparse.Namespace, changes: Sequence[FileChange]) -> tuple[str, ...]:
    """The paths as they are on the host, without following a link in the last name. Raises CliError
    for one at which nothing changed."""
    found = []
    for text in options.paths:
        above, name = os.path.split(os.path.abspath(text))
        # A directory of the person's own may be reached by a link; what a change is called, not.
        choices = {os.path.abspath(text), os.path.join(os.path.realpath(above), name)}
        known = [c for c in sorted(choices) if _covers_any(c, changes)]
        if not known:
            raise CliError(f"no change is held at {visible(text)}; `keyhole changes` lists them")
        found += known
    return tuple(found)


def _covers_any(path: str, changes: Iterable[FileChange]) -> bool:
    return any(c.path == path or c.path.startswith(f"{path}/") for c in changes)


def shown_path(path: str) -> str:
    """A path as a person would type it here."""
    near = os.path.relpath(path)
    return visible(path if near.startswith("../") else near)


def hold_of(change: FileChange) -> HoldReason | None:
    """Why `keyhole apply` without a path would not apply it."""
    if change.kind is EntryKind.SPECIAL and change.change is not ChangeKind.REMOVED:
        return HoldReason.SPECIAL
    for holds, reason in (
        (change.unreadable, HoldReason.UNREADABLE),
        (change.conflict, HoldReason.CONFLICT),
        (change.executed is not None, HoldReason.EXECUTED),
        (change.leads_out, HoldReason.LEADS_OUT),
        (change.size > MAX_UNNAMED, HoldReason.LARGE),
    ):
        if holds:
            return reason
    return None


def change_rows(changes: Sequence[FileChange]) -> list[ChangeRow]:
    """Rows, those that the host may execute first, then other changes that are held back."""
    folds = _folds(changes)
    rows: list[tuple[int, str, ChangeRow]] = []
    folded: dict[str, int] = {}
    parents = {path for change in changes for path in _above(change)[:-1]}
    for change in changes:
        reason = hold_of(change)
        if reason is None and change.path in parents and change.path not in folds:
            continue  # its entries are listed
        above = next((f for f in _above(change) if f in folds), None) if reason is None else None
        if above is not None:
            folded[above] = folded.get(above, 0) + (change.path != above)
            continue
        rank = _RANKS.get(reason, 1) if reason else 2
        rows.append((rank, change.path, _row(change, reason)))
    for path, count in folded.items():
        row = ChangeRow(folds[path], f"{shown_path(path)}/", f"{count} entries")
        rows.append((2, path, row))
    return [row for _, _, row in sorted(rows, key=lambda each: each[:2])]


_RANKS = {HoldReason.EXECUTED: 0}


def _row(change: FileChange, reason: HoldReason | None) -> ChangeRow:
    slash = "/" if change.kind is EntryKind.DIRECTORY else ""
    return ChangeRow(
        change.change,
        f"{shown_path(change.path)}{slash}",
        _note(change, reason),
        first=reason is HoldReason.EXECUTED,
    )


def _note(change: FileChange, reason: HoldReason | None) -> str:
    notes = []
    if change.executed is not None:
        notes.append(f"your host may execute it: {visible(change.executed.why)}")
    if change.conflict:
        notes.append("conflict: you changed it, too")
    if change.kind is EntryKind.LINK and change.change is not ChangeKind.REMOVED:
        out = ", out of the project" if change.leads_out else ""
        notes.append(f"a link to {visible(change.target)}{out}")
    if change.kind is EntryKind.FILE and change.change is not ChangeKind.REMOVED:
        executable = ", executable" if change.mode & 0o100 else ""
        size = format_size(change.size) if change.size else "empty"
        notes.append(f"{size}{executable}")
    if reason not in (None, HoldReason.CONFLICT, HoldReason.EXECUTED):
        notes.append(HELD[reason])
    return "; ".join(notes)


def _folds(changes: Sequence[FileChange]) -> dict[str, str]:
    """Directories with many entries that are one row: new or removed ones, and git's own."""
    counts: dict[str, int] = {}
    kinds = {
        c.path: str(c.change)
        for c in changes
        if c.kind is EntryKind.DIRECTORY and c.change is not ChangeKind.CHANGED
    }
    for change in changes:
        for path in _above(change):
            if path.endswith("/.git"):
                kinds.setdefault(path, str(ChangeKind.CHANGED))
            if path in kinds:
                counts[path] = counts.get(path, 0) + 1
    return {path: kinds[path] for path, count in counts.items() if count >= FOLDED_FROM}


def _above(change: FileChange) -> list[str]:
    """The directories that it lies in, and itself; the outermost first."""
    parts = change.name.split("/")
    return [f"{change.tree}/{'/'.join(parts[: count + 1])}" for count in range(len(parts))]


def held_lines(held: Sequence[tuple[FileChange, HoldReason]]) -> list[str]:
    """Lines about changes that were not applied."""
    lines = [
        f"not applied: {shown_path(change.path)} ({HELD[reason]})"
        for change, reason in held[:MAX_HELD_LINES]
    ]
    more = len(held) - MAX_HELD_LINES
    return [*lines, *([f"not applied: {more} more; `keyhole changes` lists them"] * (more > 0))]


def as_json(change: FileChange) -> dict[str, object]:
    """One change for programs."""
    reason = hold_of(change)
    return {
        "id": hashlib.sha256(os.fsencode(change.path)).hexdigest()[:10],
        "path": change.path,
        "change": str(change.change),
        "kind": str(change.kind),
        "size": change.size,
        "executable": change.kind is EntryKind.FILE and bool(change.mode & 0o100),
        "target": change.target or None,
        "conflict": change.conflict,
        "executed": change.executed.why if change.executed else None,
        "held": str(reason) if reason else None,
    }
