"""Watches the size of a sandbox's kept trees while it runs, and ends it at the bound (I9).

Without root there is no quota on a directory, so the bound is not exact: between two looks, a
sandbox can write as much as the disk takes in that time. It is the same for the project's own tree.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from keyhole.model.quantity import format_size
from keyhole.sandbox.homes.tree_size import measure_trees
from keyhole.sandbox.interface import SandboxNotice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST_SECONDS = 1.0
"""Before the first look, so that a short command is not slowed."""
EVERY_SECONDS = 10.0
_REST = 20
"""A look that takes long is repeated after this many times as long."""
_WARN = 0.8
"""The part of the bound at which the person is told."""


@contextlib.contextmanager
def watch_size(
    trees: tuple[str, ...],
    most: int,
    end: Callable[[], None],
    told: Callable[[SandboxNotice], None],
    first: float = FIRST_SECONDS,
    every: float = EVERY_SECONDS,
) -> Iterator[None]:
    """Look at the trees from time to time while the block lasts. Over `most` bytes, `end` is
    called and then `told`, from a thread."""
    stop = threading.Event()

    def watch() -> None:
        warned = False
        rest = first
        while not stop.wait(rest):
            began = time.monotonic()
            size = measure_trees(trees, gently=True)
            if size.bytes > most or not size.whole:
                end()
                told(_over(size.bytes, most, whole=size.whole))
                return
            if size.bytes > most * _WARN and not warned:
                warned = True
                told(_near(size.bytes, most))
            rest = max(every, _REST * (time.monotonic() - began))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


def _over(size: int, most: int, *, whole: bool) -> SandboxNotice:
    shown = f"more than limits.home ({format_size(most)})" if whole else "more than can be counted"
    return SandboxNotice(
        "home-full",
        f"the kept home and caches hold {shown}: the command is ended. `keyhole home list` shows "
        "their size, `keyhole home reset` empties them",
        {"bytes": str(size)},
        ends=True,
    )


def _near(size: int, most: int) -> SandboxNotice:
    return SandboxNotice(
        "home-filling",
        f"the kept home and caches hold {size * 100 // most} % of limits.home "
        f"({format_size(most)}); the command is ended when they hold more than that",
        {"bytes": str(size)},
    )
