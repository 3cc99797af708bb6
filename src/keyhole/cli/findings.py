"""`keyhole findings`: lists files that runs left and the host may execute, until dismissed."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.run.finding_store import FindingStore, ProjectFindings
from keyhole.app.run.run_findings import refresh_findings
from keyhole.app.setup.host_paths import find_policy
from keyhole.cli.amounts import age, moment
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.text import visible
from keyhole.sandbox.files.comparison import take_snapshot

if TYPE_CHECKING:
    from keyhole.app.run.finding_store import OpenFinding
    from keyhole.cli.tables import Cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_project_flags(parser)
    actions = parser.add_subparsers(metavar="[list|dismiss]", dest="action")
    text = "list open findings; one closes when its file is gone, or is again as it was"
    listing = actions.add_parser("list", help=text, description=text)
    _add_project_flags(listing, again=True)
    text = "close findings that you have looked at; one opens again when its file changes"
    dismiss = actions.add_parser("dismiss", help=text, description=text)
    dismiss.add_argument("ids", nargs="*", metavar="ID", help="as the list shows it")
    dismiss.add_argument(
        "--all", action="store_true", help="every finding that the last list showed"
    )
    _add_project_flags(dismiss, again=True)


def _add_project_flags(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    # SUPPRESS: an action must not reset what was given before it.
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=Path,
        default=argparse.SUPPRESS if again else None,
        help="of the project (default: keyhole.toml here or above)",
    )
    parser.add_argument(
        "--every-project",
        action="store_true",
        default=argparse.SUPPRESS if again else False,
        help="of every project, not only this one",
    )
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """List or dismiss findings."""
    store = FindingStore(find_host_paths().findings)
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
        raise CliError("name the findings: `keyhole findings dismiss ID…`, or `--all`")
    # Only findings that were listed are dismissed: the files are looked at again afterwards.
    projects = _projects(store, options)
    books = {project: store.read(project) for project in projects}
    known = {each.id for book in books.values() for each in book.open}
    chosen = known if options.all else set(options.ids)
    if missing := sorted(chosen - known):
        raise CliError(
            f"there is no open finding {visible(', '.join(missing))}: it is gone, or the file was "
            "changed since it was listed; `keyhole findings` shows what is there now"
        )
    done: list[OpenFinding] = []
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
    # The policy may be gone or not valid.
    policy = options.policy or find_policy(Path.cwd(), find_host_paths().home)
    return [os.path.dirname(os.path.realpath(policy))]


def _looked_at(store: FindingStore, project: str) -> ProjectFindings:
    if not store.known(project):
        return ProjectFindings(project)
    return refresh_findings(store, project, take_snapshot(store.read(project).scope))


_COLUMNS = (
    Column("ID"),
    Column("AGE", right=True, needs=100),
    Column("CHANGE"),
    Column("PATH", Fit.WRAPPED),
    Column("WHY", Fit.WRAPPED),
)


def _row(each: OpenFinding) -> tuple[Cell, ...]:
    finding = each.finding
    why = f"{finding.detail}; {finding.why}" if finding.detail else finding.why
    old = age(max(time.time() - each.since, 0))
    return tuple(map(cell, (each.id, old, finding.change, finding.path, why)))


def _below(books: list[ProjectFindings]) -> str:
    uncounted = sum(book.uncounted for book in books)
    lines = []
    if uncounted:
        lines.append(f"and {uncounted} more that were not stored; the audit log has some of them")
    if uncounted or any(book.open for book in books):
        lines.append("`keyhole findings dismiss ID…` when you have looked at them, or `--all`")
    else:
        lines.append("nothing is left behind that this host may execute")
    return "\n".join(lines)


def _as_json(book: ProjectFindings, each: OpenFinding) -> dict[str, object]:
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
