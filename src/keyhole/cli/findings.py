"""`keyhole findings`: what runs left that the host may execute, until a person dismisses it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.findings import Book, FindingStore
from keyhole.app.leaving import renew
from keyhole.app.places import POLICY_NAME
from keyhole.cli.amounts import age, moment
from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.model.text import visible
from keyhole.sandbox.files.comparison import snapshot

if TYPE_CHECKING:
    import argparse

    from keyhole.app.findings import Open
    from keyhole.cli.tables import Cell


def run(options: argparse.Namespace) -> int:
    """List them, or dismiss some."""
    store = FindingStore(find_places().findings)
    try:
        if options.action == "dismiss":
            return _dismiss(store, options)
        return _list(store, options)
    except OSError as error:
        raise CliError(f"findings cannot be read or written: {visible(str(error))}") from None


def _list(store: FindingStore, options: argparse.Namespace) -> int:
    books = [_looked_at(store, project) for project in _projects(store, options)]
    rows = [(book, each) for book in books for each in book.open]
    if options.json:
        print_json([_as_json(book, each) for book, each in rows])
        return EXIT_OK
    show([Grid(_COLUMNS, tuple(_row(each) for _, each in rows), _below(books))])
    return EXIT_OK


def _dismiss(store: FindingStore, options: argparse.Namespace) -> int:
    if bool(options.ids) == options.all:
        raise CliError("which? `keyhole findings dismiss ID…`, or `--all`")
    # What is dismissed is what was listed: the files are looked at only afterwards.
    projects = _projects(store, options)
    books = {project: store.read(project) for project in projects}
    known = {each.id for book in books.values() for each in book.open}
    chosen = known if options.all else set(options.ids)
    if missing := sorted(chosen - known):
        raise CliError(
            f"there is no open finding {visible(', '.join(missing))}: it is gone, or the file was "
            "changed since it was listed; `keyhole findings` shows what is there now"
        )
    done: list[Open] = []
    for project in projects:
        with store.changing(project) as held:
            done += [each for each in held[0].open if each.id in chosen]
            held[0] = held[0].without(chosen)
    left = sum(len(_looked_at(store, project).open) for project in projects)
    if options.json:
        print_json([{"id": each.id, "path": each.finding.path} for each in done])
        return EXIT_OK
    for each in done:
        print(f"dismissed {each.id}: {visible(each.finding.path)}")
    print(f"{left or 'no'} {'finding is' if left == 1 else 'findings are'} open")
    return EXIT_OK


def _projects(store: FindingStore, options: argparse.Namespace) -> list[str]:
    if options.every_project:
        return [book.project for book in store.every()]
    # The policy need not be there any more, nor be valid.
    return [os.path.dirname(os.path.realpath(options.policy or Path(POLICY_NAME)))]


def _looked_at(store: FindingStore, project: str) -> Book:
    if not store.known(project):
        return Book(project)
    return renew(store, project, snapshot(store.read(project).scope))


_COLUMNS = (
    Column("ID"),
    Column("AGE", right=True, needs=100),
    Column("CHANGE"),
    Column("PATH", Fit.WRAPPED),
    Column("WHY", Fit.WRAPPED),
)


def _row(each: Open) -> tuple[Cell, ...]:
    finding = each.finding
    why = f"{finding.detail}; {finding.why}" if finding.detail else finding.why
    old = age(max(time.time() - each.since, 0))
    return tuple(map(cell, (each.id, old, finding.change, finding.path, why)))


def _below(books: list[Book]) -> str:
    uncounted = sum(book.uncounted for book in books)
    lines = []
    if uncounted:
        lines.append(f"and {uncounted} more that were not kept; the audit log has some of them")
    if uncounted or any(book.open for book in books):
        lines.append("`keyhole findings dismiss ID…` when you have looked at them, or `--all`")
    else:
        lines.append("nothing is left behind that this host may execute")
    return "\n".join(lines)


def _as_json(book: Book, each: Open) -> dict[str, object]:
    finding = each.finding
    return {
        "id": each.id,
        "project": book.project,
        "path": finding.path,
        "change": finding.change,
        "why": finding.why,
        "detail": finding.detail,
        "session": each.session,
        "found": moment(each.since),
    }
