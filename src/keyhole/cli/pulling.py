"""What a person sees while an image is pulled: a bar on a terminal, a line elsewhere.

Everything shown comes from a registry by way of the engine, so it is counted and never printed.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from keyhole.cli.paint import paint
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyhole.app.containers import Pulling
    from keyhole.sandbox.containers.engine import Progress

MAX_LAYERS = 1000
"""Layers that are counted; engines take some hundred."""

_DOWNLOADING = "Downloading"
_DONE = ("Download complete", "Pull complete", "Already exists")
_PLAIN = frozenset({"", "dumb", "unknown"})


def shown(*, quiet: bool = False) -> Pulling:
    """How it is shown here."""
    if quiet:
        return lambda _, progress: _drain(progress)
    if sys.stderr.isatty() and os.environ.get("TERM", "") not in _PLAIN:
        return _draw
    return _tell


def _drain(progress: Iterator[Progress]) -> None:
    for _ in progress:
        pass


def _tell(name: str, progress: Iterator[Progress]) -> None:
    said = f"pulling {visible(name)}, which the engine does not have"
    print(f"{paint('keyhole:', 'yellow', stream=sys.stderr)} {said}", file=sys.stderr, flush=True)
    _drain(progress)


def _draw(name: str, progress: Iterator[Progress]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR")))
    text = TextColumn("{task.description}", markup=False)
    with Bars(text, BarColumn(), DownloadColumn(), console=console, transient=True) as bars:
        bar = bars.add_task(f"pulling {visible(name)}", total=None)
        sizes = Sizes()
        for each in progress:
            sizes.hear(each)
            bars.update(bar, completed=sizes.done, total=sizes.total or None)


class Sizes:
    """How much of all layers is there, as far as the engine has said."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    @property
    def done(self) -> int:
        """Bytes that are there."""
        return sum(done for done, _ in self._layers.values())

    @property
    def total(self) -> int:
        """Bytes of the layers whose size is known."""
        return sum(total for _, total in self._layers.values())

    def hear(self, said: Progress) -> None:
        """What the engine says of a layer."""
        known = said.layer in self._layers
        if said.status == _DOWNLOADING and said.total and (known or len(self._layers) < MAX_LAYERS):
            self._layers[said.layer] = (said.done, said.total)
        elif said.status in _DONE and known:
            total = self._layers[said.layer][1]
            self._layers[said.layer] = (total, total)
