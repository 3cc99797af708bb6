"""`keyhole log verify`: whether a line of the log was removed, changed or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.audit.log_line import is_digest
from keyhole.audit.verify import verify_log
from keyhole.cli.amounts import count
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.audit.log_directory import LogDirectory
    from keyhole.audit.verify import VerifyFinding

_DIGEST_PREFIX = "sha256:"


def parse_head(text: str | None) -> str | None:
    """The digest that was typed, or CliError."""
    if text is None:
        return None
    digest = text.removeprefix(_DIGEST_PREFIX)
    if not is_digest(digest):
        raise CliError("--head wants the 64 hexadecimal digits that a run printed when it ended")
    return digest


def show_verification(directory: LogDirectory, head: str | None, *, as_json: bool) -> int:
    """Verify the log and print the result; 1 when it is not whole."""
    report = verify_log(directory, head)
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
    extent = f"{report.lines} lines in {count(report.files, 'file')}"
    if report.whole:
        print(f"{paint('whole', 'green')}: {extent}")
        return EXIT_OK
    problems = count(len(report.problems), "problem")
    print(f"the log is {paint('not whole', 'red')}: {extent}, {problems}")
    return EXIT_DENIED


def _finding(finding: VerifyFinding) -> str:
    place = f"{finding.file}:{finding.line}" if finding.line else finding.file
    return visible(f"{place}: {finding.text}")


def _finding_json(finding: VerifyFinding) -> dict[str, str | int]:
    place = f"{finding.file}:{finding.line}"
    return {"id": place, "file": finding.file, "line": finding.line, "message": finding.text}
