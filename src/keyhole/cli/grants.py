"""The grants of a policy, as text for a person and for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from keyhole.cli.paint import print_below
from keyhole.model.text import visible

if TYPE_CHECKING:
    from keyhole.policy.summary import GrantLine


def print_grants(lines: tuple[GrantLine, ...], stream: TextIO | None = None) -> None:
    """Print the grants, grouped by subject; those that reach into the host are marked."""
    width = max(len(line.subject) for line in lines)
    last = None
    for line in lines:
        subject = "" if line.subject == last else line.subject
        alarm = f"! {line.alarm}" if line.alarm else ""
        head = f"  {visible(subject).ljust(width)}  "
        print_below(head, visible(line.text), alarm, stream=stream)
        last = line.subject


def grants_json(lines: tuple[GrantLine, ...]) -> list[dict[str, Any]]:
    """The grants for `--json`."""
    return [
        {"id": f"{line.subject}: {line.text}", "subject": line.subject, "text": line.text,
         "alarm": line.alarm}
        for line in lines
    ]  # fmt: skip
