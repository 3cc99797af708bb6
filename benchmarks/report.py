"""Writes the results of a run into a document, with the machine that they come from.

Called by `python -m benchmarks --write FILE`. The block between `<!-- results:begin -->` and
`<!-- results:end -->` is replaced; the prose around it is written by hand.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.rounds import Row

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and when a run was measured."""

    date: str
    processor: str
    cores: int
    kernel: str
    python: str

    @classmethod
    def this(cls) -> Machine:
        """The machine that this process runs on."""
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return cls(
            datetime.datetime.now(datetime.UTC).date().isoformat(),
            next(names, platform.machine()),
            os.cpu_count() or 1,
            f"{platform.system()} {platform.release().partition('-')[0]}",
            platform.python_version(),
        )


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement: its title and its rows; no rows when it was not run."""

    title: str
    rows: Sequence[Row]


def block(machine: Machine, sections: Sequence[Section]) -> str:
    """The machine, and a row for each measure that has a bound."""
    lines = [
        BEGIN,
        f"Measured on {machine.date}: {machine.processor}, {machine.cores} cores, {machine.kernel},"
        f" Python {machine.python}.",
    ]
    for section in sections:
        lines += ["", f"### {section.title}", ""]
        judged = [row for row in section.rows if row.bounds]
        if not judged:
            lines.append("Not measured in this run.")
            continue
        lines += ["| measure | value | ratio | bound | kept |", "|---|---|---|---|---|"]
        lines += [_line(row) for row in judged]
    return "\n".join([*lines, END])


def _line(row: Row) -> str:
    name, value = " ".join(row.name.split()), " ".join(row.figure.split()) or "–"
    if row.ratio is None:
        return f"| {name} | {value} | – | {row.bounds} | not measured |"
    return f"| {name} | {value} | {row.ratio:.2f} | {row.bounds} | {'yes' if row.kept else 'no'} |"


def replaced(page: str, made: str) -> str:
    """The page with this block in the place of the one that it has."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} … {END}")
    return f"{head}{made}{tail}"


def write(file: Path, made: str) -> None:
    """Replace the block of a page, in one step."""
    text = replaced(file.read_text("utf-8"), made)
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    os.replace(new, file)
