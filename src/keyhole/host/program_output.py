"""Runs one program of the host and returns its output, within bounds.

Called by `HostEnvironment.ask`, which has chosen the program and its environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.system.child import Children

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SECONDS = 10.0
"""A package manager prints its settings within a second; on a slow disk within a few."""

MAX_OUTPUT = 1024 * 1024
"""Bytes printed: `npm config list --json` prints about 6,000."""


class ProgramOutput(Struct, frozen=True):
    """A program's output, and its exit code."""

    text: str
    status: int


def run_program(
    argv: Sequence[str], env: Mapping[str, str], *, complaint: bool = False
) -> ProgramOutput | None:
    """Run it without stdin in `/`; None if it could not run, took too long or printed too much.

    With `complaint`, the text is the end of its stderr.
    """
    try:
        ended = Children(MAX_SECONDS).run(argv, env, MAX_OUTPUT, tied=False)
    except (OSError, ValueError):
        return None
    if ended.stopped or ended.status < 0:
        return None
    data = ended.complaint if complaint else ended.printed
    return ProgramOutput(data.decode("utf-8", "replace"), ended.status)
