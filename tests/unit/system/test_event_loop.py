"""A loop that Ctrl-C may interrupt at any moment."""

from __future__ import annotations

import asyncio
import gc
import selectors
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from keyhole.system.event_loop import run_on_loop
from tests.rigs.waiting import PATIENCE


def interrupt() -> None:
    """Ctrl-C in a process with this thread alone. Another thread, left by another test, would take
    a signal of the process that this one blocks."""
    signal.raise_signal(signal.SIGINT)


async def answer() -> int:
    return 7


def test_the_result_is_returned() -> None:
    assert run_on_loop(answer) == 7


def test_an_error_is_passed_on_and_ctrl_c_works_again() -> None:
    async def fails() -> None:
        raise ValueError("told")

    with pytest.raises(ValueError, match="told"):
        run_on_loop(fails)
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_ctrl_c_while_the_loop_is_made_leaves_no_half_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: with `asyncio.run` the loop has no sockets, and its finaliser fails."""
    made = selectors.DefaultSelector

    def interrupted() -> selectors.BaseSelector:
        interrupt()
        return made()

    monkeypatch.setattr(selectors, "DefaultSelector", interrupted)
    failed: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda told: failed.append(told.exc_value))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_on_loop(answer)
        gc.collect()
        assert (failed, warned) == ([], [])
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(answer())
        gc.collect()
        assert failed or warned


def test_ctrl_c_cancels_what_runs_and_its_clean_up_is_not_interrupted() -> None:
    steps = []

    async def waits() -> None:
        interrupt()
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("cleaned")

    with pytest.raises(KeyboardInterrupt):
        run_on_loop(waits)
    assert steps == ["cleaned"]


def test_ctrl_c_that_does_not_end_the_wait_of_the_loop_is_not_missed() -> None:
    """As one that comes just before the wait: here another thread takes the signal."""

    async def waits(seconds: float) -> None:
        threading.Timer(0.1, interrupt).start()
        await asyncio.sleep(seconds)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_on_loop(lambda: waits(PATIENCE))
    assert time.monotonic() - begun < PATIENCE
    # The control: otherwise it is noticed when the loop wakes for another reason.
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(waits(0.5))
    assert time.monotonic() - begun >= 0.5


def test_a_loop_of_another_thread_has_no_part_in_signals() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_on_loop, answer).result() == 7


def test_ctrl_c_at_the_end_is_raised_when_the_loop_is_closed() -> None:
    loops = []

    async def ends() -> None:
        loop = asyncio.get_running_loop()
        loops.append(loop)
        loop.call_soon(interrupt)

    with pytest.raises(KeyboardInterrupt):
        run_on_loop(ends)
    assert loops[0].is_closed()
