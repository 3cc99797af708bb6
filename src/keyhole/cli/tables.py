"""Tables of `status` and `ps`, once or again and again: by rich on a terminal, plain elsewhere.

A cell is a text that was made visible, and never markup. Only this module imports rich, and only
where it draws.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in a table, line by line, and how it is drawn where there is colour."""

    lines: tuple[str, ...]
    style: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a grid."""

    name: str
    right: bool = False
    whole: bool = False
    """It is never cut: an id, a number."""
    needs: int = 0
    """Columns that the terminal must have for it to be shown."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table with its head, and what is said where there are no rows, or below them."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    below: str = ""


def cell(text: object, style: str = "") -> Cell:
    """A cell of one line."""
    return Cell((str(text),), style)


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
        head = [tuple(column.name for column in grid.columns)] if any(_heads(grid)) else []
        rows = [tuple(visible(", ".join(each.lines)) for each in row) for row in grid.rows]
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
        if grid.rows:
            parts.append(_table(grid, console.width))
        if grid.below:
            parts.append(Text(grid.below))
    return Group(*parts)


def _table(grid: Grid, width: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    headed = any(_heads(grid))
    table = Table(
        box=SIMPLE_HEAD if headed else None,
        show_header=headed,
        header_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    shown = [column.needs <= width for column in grid.columns]
    for column, is_shown in zip(grid.columns, shown, strict=True):
        if is_shown:
            table.add_column(
                Text(column.name),
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=_longest(grid, column) if column.whole else None,
            )
    for row in grid.rows:
        cells = (
            Text("\n".join(map(visible, each.lines)), style=each.style)
            for each, is_shown in zip(row, shown, strict=True)
            if is_shown
        )
        table.add_row(*cells)
    return table


def _longest(grid: Grid, column: Column) -> int:
    number = grid.columns.index(column)
    texts = (line for row in grid.rows for line in row[number].lines)
    return max(map(len, texts), default=1)
