"""Delays Ctrl-C while something is started that no clean-up knows yet.

Python raises KeyboardInterrupt between any two steps, and so also between the start of a process or
a container and the assignment by which a clean-up finds it. Called by everything that starts one
outside an event loop; on a loop the first signal only cancels a task, at its next `await`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_TERMINATION = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block.

    By a handler and not by a mask: a process that is started in the block would inherit the mask,
    and another thread without one would take the signal. Only the main thread is ever interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):  # ignored, or not Python's: it raises nothing
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def note_interrupts() -> Iterator[Callable[[], bool]]:
    """Let the block ask whether Ctrl-C was typed, instead of being interrupted between any two
    steps. It is for the block to end then: no signal follows."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_on_termination() -> None:
    """Let the signals that end this process interrupt it as Ctrl-C does, so that it removes what
    it has started. An event loop that handles one of them itself still does."""
    # Ignored in a process that a shell has started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _TERMINATION:
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
