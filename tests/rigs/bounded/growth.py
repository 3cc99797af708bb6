"""How the time of something grows with what it is fed, on a machine that does other things as well.

CPU time of this thread counts, not the clock; the best of several runs; and what looks like more
than linear growth is measured again, and then with more of it, before it is believed: when memory
outgrows a cache that other programs use as well, the time grows by more than the input, once.
Something that would take for ever is broken off.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    Work = Callable[[], object]
    Make = Callable[[int], Work]
    """From a size to what is to be done with an input of that size, which is made here."""

STEPS = (1, 2, 4)

MOST = 8.0
"""How many times longer four times as much may take: linear is 4, quadratic 16."""

FLOOR = 0.003
"""Seconds: what takes less is not worth a comparison."""

PATIENCE = 2.0
"""Seconds after which one run is broken off."""

SCALES = (1, 1, 2, 4)
"""Each try's multiple of the size. More than linear growth is seen in all of them."""


class Slow(AssertionError):
    """It grows more than it should, or takes too long."""


def check(make: Make, size: int, *, most: float) -> None:
    """Raise Slow unless the time grows linearly, and four times `size` takes `most` seconds."""
    faults = []
    for scale in SCALES:
        times = {size * scale * step: _best(make(size * scale * step)) for step in STEPS}
        first, *_, last = times.values()
        grows = last > FLOOR and last > MOST * first
        if not grows and last <= most * scale:
            return
        shown = ", ".join(f"{n}: {seconds * 1000:.1f} ms" for n, seconds in times.items())
        faults.append(f"{'more than linear' if grows else f'over {most * scale} s'}: {shown}")
    raise Slow("; ".join(faults))


def _best(work: Work) -> float:
    best = PATIENCE
    with _limit():
        for _ in range(3):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
            if best > FLOOR * 10:
                break
    return best


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Raise Slow in what takes longer than PATIENCE; `re` looks for signals while it searches."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise Slow(f"broken off after {PATIENCE} s")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
