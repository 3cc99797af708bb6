"""How the time of something grows with what it is fed, on a machine that does other things as well.

CPU time of this thread counts, not the clock. Other programs can only add to it, so the best of
several runs counts, and rounds are added until the answer is clear: times that plainly grow with
the input need one. What looks like more than linear growth is then measured with more input before
it is believed: when memory outgrows a cache that other programs use as well, the time grows by more
than the input, once. Something that would take for ever is broken off.
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

SURELY_LINEAR = 5.0
"""How many times longer four times as much may take to be believed at once: linear is 4. Something
quadratic (16) would pass only if each run of its smallest input took three times too long."""

MOST = 8.0
"""How many times longer four times as much may take after all rounds."""

SURELY_MORE = 12.0
"""How many times longer it must take to end the rounds: quadratic is 16."""

ROUNDS = 4

FLOOR = 0.003
"""Seconds: what takes less is not worth a comparison."""

RUNS = 3

LONG = 0.1
"""Seconds: a run that takes more is not repeated in the same round."""

PATIENCE = 2.0
"""Seconds after which one run is broken off."""

SCALES = (1, 2, 4)
"""Each try's multiple of the size. More than linear growth is seen in all of them."""


class Slow(AssertionError):
    """It grows more than it should, or takes too long."""


def check(make: Make, size: int, *, most: float) -> None:
    """Raise Slow unless the time grows linearly, and four times `size` takes `most` seconds."""
    faults = []
    for scale in SCALES:
        fault = _fault(make, size * scale, most * scale)
        if fault is None:
            return
        faults.append(fault)
    raise Slow("; ".join(faults))


def _fault(make: Make, size: int, most: float) -> str | None:
    works = {size * step: make(size * step) for step in STEPS}
    best = dict.fromkeys(works, PATIENCE)
    # The smallest is run as often as ever: only a time of it that is too long acquits. One run of
    # the largest can only convict, and then all are measured again.
    small, *_, large = works
    for runs in ({small: RUNS, large: 1}, *[dict.fromkeys(works, RUNS)] * ROUNDS):
        for each, times in runs.items():
            best[each] = min(best[each], _best(works[each], times))
        first, last = best[small], best[large]
        if last <= most and (last <= FLOOR or last <= SURELY_LINEAR * first):
            return None
        if len(runs) == len(works) and last > FLOOR and last > SURELY_MORE * first:
            break
    shown = ", ".join(f"{each}: {seconds * 1000:.1f} ms" for each, seconds in best.items())
    if last > FLOOR and last > MOST * first:
        return f"more than linear: {shown}"
    return f"over {most} s: {shown}" if last > most else None


def _best(work: Work, runs: int) -> float:
    best = PATIENCE
    with _limit():
        for _ in range(runs):
            start = time.thread_time()
            work()
            best = min(best, time.thread_time() - start)
            if best > LONG:
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
