"""`keyhole log`: prints the events of the audit log, or verifies that it is whole."""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, NoReturn

from keyhole.audit.log_directory import LogDirectory
from keyhole.audit.log_reader import LogFilter, LogReader
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.log_entry import complain_of_line
from keyhole.cli.log_rows import print_csv_head, print_csv_row, text_row
from keyhole.cli.log_time import parse_since
from keyhole.cli.log_verify import parse_head, show_verification
from keyhole.cli.verb_context import find_host_paths
from keyhole.model.text import visible

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable

    from keyhole.audit.log_reader import LogEntry

POLL_SECONDS = 0.2
BACKLOG = 10
"""Earlier events that `-f` shows first, as `tail -f` does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f", "--follow", action="store_true", help="print new events as they happen"
    )
    parser.add_argument("--denied", action="store_true", help="only denied events")
    parser.add_argument("--session", metavar="ID", help="only this session (its first letters do)")
    parser.add_argument("--host", metavar="HOST", help="only this host, or *.NAME: its subdomains")
    parser.add_argument(
        "--since", metavar="TIME", help="only later events: 90s, 2h, 3d, today, or 2026-11-17 09:30"
    )
    parser.add_argument(
        "-n",
        dest="last",
        type=_count,
        metavar="N",
        help="only the last N (with -f: first N, then new)",
    )
    parser.add_argument("--csv", action="store_true", help="rows for a spreadsheet")
    actions = parser.add_subparsers(metavar="verify", dest="action")
    text = "find lines that were removed, changed or moved (exit 1 when there are any)"
    verify = actions.add_parser("verify", help=text, description=text)
    verify.add_argument("--head", metavar="DIGEST", help="audit head that a run printed last")
    add_json_flag(verify)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the log, or verify it."""
    stdout: io.TextIOWrapper = sys.stdout  # type: ignore[assignment]
    stdout.reconfigure(
        errors="backslashreplace"
    )  # the terminal's encoding may lack characters of a name
    path = find_host_paths().audit
    try:
        if options.action == "verify":
            head = parse_head(options.head)
            return show_verification(LogDirectory.open(path), head, as_json=options.json)
        return _show(LogDirectory.open(path), options)
    except FileNotFoundError:
        if options.action == "verify":
            raise CliError(f"there is no log at {visible(str(path))}: nothing to verify") from None
        return _say_nothing(as_json=options.json, as_csv=options.csv)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError("a number of events, as 20")
    return int(text)


def _show(directory: LogDirectory, options: argparse.Namespace) -> int:
    if options.csv and options.json:
        raise CliError("--csv or --json, not both")
    since = parse_since(options.since) if options.since else None
    wanted = LogFilter(options.session, options.denied, since, options.host)
    # A file that was last written before that time has nothing to show.
    story = LogReader(directory, 0.0 if options.follow else since or 0.0)
    entries: Iterable[LogEntry] = (entry for entry in story.read() if wanted.takes(entry))
    if options.follow:
        backlog = deque(entries, BACKLOG if options.last is None else options.last)
        _follow(story, wanted, backlog, _printer(options))
    if options.last is not None:
        entries = deque(entries, options.last)
    if options.json:
        _print_array(entries)
    elif not sum(map(_printer(options), entries)) and not options.csv:
        asked = wanted != LogFilter() or options.last is not None
        what = "that was asked for" if asked else "yet"
        # On standard error: what reads the rows of a pipe must not take this for one.
        print(f"keyhole: nothing {what} in {visible(str(directory.path))}", file=sys.stderr)
    for name in story.torn():
        print(
            f"keyhole: {visible(name)} ends within a line: its writer was killed, and the last "
            "batch was lost",
            file=sys.stderr,
        )
    return EXIT_OK


def _printer(options: argparse.Namespace) -> Callable[[LogEntry], int]:
    """A function that prints an entry in the form that was asked for, and counts it."""
    if options.csv:
        print_csv_head()
    as_json, as_csv = options.json, options.csv

    def show(entry: LogEntry) -> int:
        if entry.record is None:
            complain_of_line(entry)
            return 0
        if as_csv:
            print_csv_row(entry.record)
        else:
            print(_with_id(entry) if as_json else text_row(entry.record))
        return 1

    return show


def _say_nothing(*, as_json: bool, as_csv: bool) -> int:
    if as_json:
        print("[]")
    elif as_csv:
        print_csv_head()
    else:
        print("keyhole: there is no log yet: `keyhole run` writes it", file=sys.stderr)
    return EXIT_OK


def _follow(
    story: LogReader,
    wanted: LogFilter,
    backlog: Iterable[LogEntry],
    show: Callable[[LogEntry], int],
) -> NoReturn:
    def wait() -> None:
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)

    for entry in backlog:
        show(entry)
    sys.stdout.flush()
    for entry in story.follow(wait):
        if wanted.takes(entry):
            show(entry)
    raise AssertionError("a log is followed until it is interrupted")


def _print_array(entries: Iterable[LogEntry]) -> None:
    """Print one event a line, so that a large log is never in memory as a whole."""
    print("[", end="")
    between = "\n"
    for entry in entries:
        if entry.record is None:
            complain_of_line(entry)
            continue
        print(f"{between}{_with_id(entry)}", end="")
        between = ",\n"
    print("\n]")


def _with_id(entry: LogEntry) -> str:
    """The line as written, with its digest as `id`."""
    return f'{{"id":"{entry.id}",{entry.data.decode("ascii", "replace").lstrip()[1:]}'
