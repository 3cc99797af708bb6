"""Tables of `status` and `ps`, once or again and again: by rich on a terminal, plain elsewhere.

A cell is a text that was made visible, and never markup. Only this module imports rich, and only
where it draws.
"""

from __future__ import annotations

import enum
import os
import sys
import time
from typing import TYPE_CHECKING

from keyhole.cli.paint import columns
from keyhole.model.text import visible
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from rich.console import Console, RenderableType
    from rich.table import Table

WATCH_SECONDS = 1.0
"""Between two looks of `--watch`."""

_PLAIN_TERMINALS = frozenset({"", "dumb", "unknown"})
"""Values of TERM that promise no cursor to move."""


class Fit(enum.Enum):
    """What becomes of a column where the terminal is narrow."""

    WHOLE = enum.auto()
    """It is never cut: an id, a number."""
    CUT = enum.auto()
    WRAPPED = enum.auto()


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, and how it is drawn where there is colour."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a grid."""

    name: str
    fit: Fit = Fit.WHOLE
    right: bool = False
    needs: int = 0
    """Columns that the terminal must have for it to be shown."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its head, and what is said where there are no rows, or below them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    below: str = ""


def cell(text: object, style: str = "") -> Cell:
    """A cell, of anything that has a text."""
    return Cell(str(text), style)


def show(grids: Sequence[Grid]) -> None:
    """Print it once."""
    speak_any_alphabet()
    if not is_drawn():
        print(plain(grids))
        return
    console = _console()
    console.print(_drawn(grids, console))


def watch(look: Callable[[], Sequence[Grid]]) -> None:
    """Show what `look` finds until Ctrl-C, which is left to the caller to name."""
    speak_any_alphabet()
    if is_drawn():
        _watch_drawn(look)
        return
    before = None
    while True:
        # Without a terminal, what has not changed is not said again.
        now = plain(look())
        if now != before:
            print(now, flush=True)
        before = now
        time.sleep(WATCH_SECONDS)


def _watch_drawn(look: Callable[[], Sequence[Grid]]) -> None:
    from rich.live import Live

    console = _console()
    # The other screen: what the person had on this one is there again at the end.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(look(), console), refresh=True)
            time.sleep(WATCH_SECONDS)


def speak_any_alphabet() -> None:
    """Paths may not be in the terminal's alphabet."""
    stdout: io.TextIOWrapper = sys.stdout  # type: ignore[assignment]
    stdout.reconfigure(errors="backslashreplace")


def is_drawn() -> bool:
    """Whether standard output is a terminal that can do more than print lines."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in _PLAIN_TERMINALS


# ── plain ─────────────────────────────────────────────────────────────────────────────────────────


def plain(grids: Sequence[Grid]) -> str:
    """Aligned columns, each row on one line, nothing cut: for pipes and for plain terminals."""
    parts = []
    for grid in grids:
        head = [tuple(_heads(grid))] if any(_heads(grid)) else []
        rows = [tuple(visible(each.text) for each in row) for row in grid.rows]
        lines = [line.rstrip() for line in columns([*head, *rows], indent="")] if rows else []
        parts.append("\n".join([*lines, *([grid.below] if grid.below else [])]))
    return "\n\n".join(parts)


def _heads(grid: Grid) -> list[str]:
    return [column.name for column in grid.columns]


# ── drawn ─────────────────────────────────────────────────────────────────────────────────────────


def _console() -> Console:
    from rich.console import Console

    # Colour of any sort: what NO_COLOR refuses elsewhere in Keyhole it refuses here.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        color_system=None if plain else "auto", highlight=False, markup=False, emoji=False
    )


def _drawn(grids: Sequence[Grid], console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for grid in grids:
        if parts:
            parts.append(Text(""))
        if grid.rows:
            parts.append(_table(grid, console.width))
        if grid.below:
            parts.append(Text(grid.below))
    return Group(*parts)


def _table(grid: Grid, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None,
        show_header=any(_heads(grid)),
        header_style="bold",
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    shown = [column for column in grid.columns if column.needs <= width]
    for column in shown:
        table.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            # What may wrap is what rich makes narrower first; a cell may still say that it is cut.
            no_wrap=column.fit is Fit.WHOLE,
        )
    for row in grid.rows:
        table.add_row(
            *(
                Text(
                    visible(each.text),
                    style=each.style,
                    no_wrap=column.fit is not Fit.WRAPPED,
                    overflow="ellipsis",
                )
                for column, each in zip(grid.columns, row, strict=True)
                if column in shown
            )
        )
    return table
