"""Tables of `status`, `ps` and `findings`: drawn by rich on a terminal, plain elsewhere.

The text of a cell is never markup, and control characters in it are made visible.
"""

from __future__ import annotations

import enum
import sys
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.cli.paint import columns, is_drawn
from keyhole.model.text import visible

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

WATCH_SECONDS = 1.0
"""Pause between two updates of `--watch`."""


class Fit(enum.Enum):
    """How a column is made to fit a narrow terminal."""

    WHOLE = enum.auto()
    """It is never cut: an id, a number."""
    CUT = enum.auto()
    WRAPPED = enum.auto()


class Cell(Struct, frozen=True):
    """One text in a table, and its style where there is colour."""

    text: str
    style: str = ""


class Column(Struct, frozen=True):
    """One column of a grid."""

    name: str
    fit: Fit = Fit.WHOLE
    right: bool = False
    needs: int = 0
    """Width of the terminal from which on this column is shown."""


class Grid(Struct, frozen=True):
    """A table with its head, and a line below the rows or in their place."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    below: str = ""


def cell(text: object, style: str = "") -> Cell:
    """Make a cell of any value."""
    return Cell(str(text), style)


def show(grids: Sequence[Grid]) -> None:
    """Print tables once."""
    speak_any_alphabet()
    if not is_drawn(sys.stdout):
        print(plain(grids))
        return
    from keyhole.cli.drawing import draw

    draw(grids)


def watch(look: Callable[[], Sequence[Grid]]) -> None:
    """Show the tables that `look` returns, again and again, until KeyboardInterrupt."""
    speak_any_alphabet()
    if is_drawn(sys.stdout):
        from keyhole.cli.drawing import redraw

        redraw(look)
        return
    before = None
    while True:
        # Without a terminal, an unchanged table is not printed again.
        now = plain(look())
        if now != before:
            print(now, flush=True)
        before = now
        time.sleep(WATCH_SECONDS)


def speak_any_alphabet() -> None:
    """Print characters that the terminal's encoding lacks as escapes."""
    stdout: io.TextIOWrapper = sys.stdout  # type: ignore[assignment]
    stdout.reconfigure(errors="backslashreplace")


def plain(grids: Sequence[Grid]) -> str:
    """Aligned columns for pipes and plain terminals: each row is one line, nothing is cut."""
    parts = []
    for grid in grids:
        head = [tuple(_heads(grid))] if any(_heads(grid)) else []
        rows = [tuple(visible(each.text) for each in row) for row in grid.rows]
        lines = [line.rstrip() for line in columns([*head, *rows], indent="")] if rows else []
        parts.append("\n".join([*lines, *([grid.below] if grid.below else [])]))
    return "\n\n".join(parts)


def _heads(grid: Grid) -> list[str]:
    return [column.name for column in grid.columns]
