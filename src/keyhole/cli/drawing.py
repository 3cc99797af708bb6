"""Tables on a terminal, drawn by rich.

Imported only where something is drawn: rich takes longer to import than most verbs take.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from keyhole.cli.tables import WATCH_SECONDS, Fit
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from keyhole.cli.tables import Grid


def draw(grids: Sequence[Grid]) -> None:
    """Print tables once."""
    console = _console()
    console.print(_drawn(grids, console))


def redraw(look: Callable[[], Sequence[Grid]]) -> None:
    """Draw what `look` finds, again and again, until Ctrl-C."""
    console = _console()
    # The alternate screen: the terminal's earlier content comes back at the end.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_drawn(look(), console), refresh=True)
            time.sleep(WATCH_SECONDS)


def _console() -> Console:
    # NO_COLOR turns off all styles, as `paint` does.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        color_system=None if plain else "auto", highlight=False, markup=False, emoji=False
    )


def _drawn(grids: Sequence[Grid], console: Console) -> RenderableType:
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
    table = Table(
        box=None,
        show_header=any(column.name for column in grid.columns),
        header_style="bold",
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    shown = [column for column in grid.columns if column.needs <= width]
    for column in shown:
        table.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            # rich narrows the columns that may wrap first; a cell can still be set to be cut.
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
