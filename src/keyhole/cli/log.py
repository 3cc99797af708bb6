"""`keyhole log` and `keyhole log verify`: what happened, and whether the log of it is whole."""

from __future__ import annotations

import sys
import time
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.audit.directory import AuditUnusable, Directory
from keyhole.audit.line import is_digest
from keyhole.audit.read import Entry, Story, Wanted
from keyhole.audit.verify import verify
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import find_places
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse
    import io
    from collections.abc import Iterable, Iterator

    from keyhole.audit.line import Record
    from keyhole.audit.verify import Finding

POLL_SECONDS = 0.2
BACKLOG = 10
"""Events that `-f` shows of what was there before, as `tail -f` does."""

_DIGEST_PREFIX = "sha256:"


def run(options: argparse.Namespace) -> int:
    """Print the log, or verify it."""
    stdout: io.TextIOWrapper = sys.stdout  # type: ignore[assignment]
    stdout.reconfigure(errors="backslashreplace")  # names may not be in the terminal's alphabet
    path = find_places().audit
    try:
        if options.action == "verify":
            return _verify(Directory.open(path), _head(options.head), as_json=options.json)
        return _show(Directory.open(path), options)
    except FileNotFoundError:
        if options.action == "verify":
            raise CliError(f"there is no log at {visible(str(path))}: nothing to verify") from None
        return _say_nothing(as_json=options.json)
    except AuditUnusable as error:
        raise CliError(f"the log cannot be read: {visible(str(error))}") from None


def _show(directory: Directory, options: argparse.Namespace) -> int:
    wanted = Wanted(options.session, options.denied)
    story = Story(directory)
    entries = (entry for entry in story.read() if wanted.takes(entry))
    if options.follow:
        _follow(story, wanted, deque(entries, BACKLOG), as_json=options.json)
    elif options.json:
        _print_array(entries)
    elif not sum(print_entry(entry) for entry in entries):
        what = "that was asked for" if options.denied or options.session else "yet"
        print(f"nothing {what} in {visible(str(directory.path))}")
    for name in story.torn():
        print(
            f"keyhole: {visible(name)} ends within a line: its writer was killed, and the last "
            "batch was lost",
            file=sys.stderr,
        )
    return EXIT_OK


def _say_nothing(*, as_json: bool) -> int:
    if as_json:
        print("[]")
    else:
        print("there is no log yet: `keyhole run` writes it")
    return EXIT_OK


def _follow(story: Story, wanted: Wanted, backlog: Iterable[Entry], *, as_json: bool) -> None:
    def show(entries: Iterable[Entry]) -> None:
        for entry in entries:
            if not wanted.takes(entry):
                continue
            if not as_json or entry.record is None:
                print_entry(entry)
            else:
                print(_with_id(entry))

    def wait() -> None:
        sys.stdout.flush()
        time.sleep(POLL_SECONDS)

    show(backlog)
    sys.stdout.flush()
    show(story.follow(wait))


def _print_array(entries: Iterator[Entry]) -> None:
    """A line for each event, so that a large log needs no memory."""
    print("[", end="")
    between = "\n"
    for entry in entries:
        if entry.record is None:
            print_entry(entry)
            continue
        print(f"{between}{_with_id(entry)}", end="")
        between = ",\n"
    print("\n]")


def _with_id(entry: Entry) -> str:
    """The line as it was written, with its digest before it."""
    return f'{{"id":"{entry.id}",{entry.data.decode("ascii", "replace").lstrip()[1:]}'


def print_entry(entry: Entry) -> int:
    if entry.record is None:
        place = f"{visible(entry.file)}:{entry.line}"
        print(f"keyhole: {place} is no event; `keyhole log verify` says more", file=sys.stderr)
        return 0
    print(_row(entry.record))
    return 1


def _row(record: Record) -> str:
    at = datetime.fromtimestamp(record.at).strftime("%Y-%m-%d %H:%M:%S")
    details = dict(record.details)
    port = details.pop("port", None)
    host = record.host if port is None or not record.host else f"{record.host}:{port}"
    colour = "red" if record.denied else "green"
    parts = [
        paint(at, "dim"),
        visible(record.session[:8] or "-").ljust(8),
        paint(visible(record.verdict).ljust(5), colour),
        visible(record.kind).ljust(8),
        visible(host or "-").ljust(32),
        visible(record.reason),
        paint(visible(f"[{record.rule}]"), "dim"),
    ]
    if record.folded:
        parts.append(paint(f"({record.folded} times)", "yellow"))
    parts += [paint(visible(f"{name}={value}"), "dim") for name, value in details.items()]
    return "  ".join(parts)


def _head(text: str | None) -> str | None:
    if text is None:
        return None
    digest = text.removeprefix(_DIGEST_PREFIX)
    if not is_digest(digest):
        raise CliError("--head wants the 64 hexadecimal digits that a run printed when it ended")
    return digest


def _verify(directory: Directory, head: str | None, *, as_json: bool) -> int:
    report = verify(directory, head)
    if as_json:
        print_json(
            {
                "whole": report.whole,
                "files": report.files,
                "lines": report.lines,
                "problems": [_finding_json(f) for f in report.problems],
                "notes": [_finding_json(f) for f in report.notes],
            }
        )
        return EXIT_OK if report.whole else EXIT_DENIED
    for finding in report.notes:
        print(f"{paint('note', 'yellow')}: {_finding(finding)}")
    for finding in report.problems:
        print(f"{paint('broken', 'red')}: {_finding(finding)}")
    extent = f"{report.lines} lines in {_count(report.files, 'file')}"
    if report.whole:
        print(f"{paint('whole', 'green')}: {extent}")
        return EXIT_OK
    problems = _count(len(report.problems), "problem")
    print(f"the log is {paint('not whole', 'red')}: {extent}, {problems}")
    return EXIT_DENIED


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"


def _finding(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return visible(f"{place}: {finding.text}")


def _finding_json(finding: Finding) -> dict[str, str | int]:
    place = f"{finding.file}:{finding.line}"
    return {"id": place, "file": finding.file, "line": finding.line, "message": finding.text}
