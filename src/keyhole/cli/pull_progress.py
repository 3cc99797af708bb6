"""Shows the progress of an image's download: a bar on a terminal, a line elsewhere.

The engine passes on texts of a registry, which are counted and never printed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from keyhole.cli.paint import is_drawn, notice
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.sandbox.containers.container_target import Pulling
    from keyhole.sandbox.containers.engine_values import PullProgress

MAX_LAYERS = 1000
"""Layers that are counted; engines accept about a hundred."""

_DOWNLOADING = "Downloading"
_DONE = ("Download complete", "Pull complete", "Already exists")


def pull_display(*, quiet: bool = False) -> Pulling:
    """The function that shows progress on this standard error."""
    if quiet:
        return lambda _, progress: _drain(progress)
    if is_drawn(sys.stderr):
        return _draw
    return _tell


def _drain(progress: Iterator[PullProgress]) -> None:
    for _ in progress:
        pass


def _tell(name: str, progress: Iterator[PullProgress]) -> None:
    notice(f"pulling {visible(name)}, which the engine does not have")
    _drain(progress)


def _draw(name: str, progress: Iterator[PullProgress]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR")))
    text = TextColumn("{task.description}", markup=False)
    with Bars(text, BarColumn(), DownloadColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(f"pulling {visible(name)}", total=None)
        sizes = LayerSizes()
        for each in progress:
            sizes.hear(each)
            bars.update(bar, completed=sizes.done, total=sizes.total or None)


class LayerSizes:
    """Bytes of all layers, as far as the engine has reported."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    @property
    def done(self) -> int:
        """Bytes that have arrived."""
        return sum(done for done, _ in self._layers.values())

    @property
    def total(self) -> int:
        """Bytes of the layers whose size is known."""
        return sum(total for _, total in self._layers.values())

    def hear(self, said: PullProgress) -> None:
        """Take in one report of the engine about a layer."""
        known = said.layer in self._layers
        if said.status == _DOWNLOADING and said.total and (known or len(self._layers) < MAX_LAYERS):
            self._layers[said.layer] = (said.done, said.total)
        elif said.status in _DONE and known:
            total = self._layers[said.layer][1]
            self._layers[said.layer] = (total, total)
