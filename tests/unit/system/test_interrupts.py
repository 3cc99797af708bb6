"""Ctrl-C is delayed while something is started, and a signal that ends a process is one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.system.interrupts import (
    delay_interrupts,
    interrupt_on_termination,
    note_interrupts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOW_SIGNALS = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Restore the handlers of the tests' own process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    """Control: without the block the same signal interrupts at once."""
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the step after the signal is the point
        with delay_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append("inside")
        steps.append("after")
    assert steps == ["inside"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_outermost_block_and_an_error_is_not_lost() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt) as raised, delay_interrupts():  # noqa: PT012
        with delay_interrupts():
            signal.raise_signal(signal.SIGINT)
        steps.append("between")
        raise ValueError
    assert steps == ["between"]
    assert isinstance(raised.value.__context__, ValueError)


def test_a_block_can_ask_whether_ctrl_c_was_typed() -> None:
    """Control: after the block it interrupts again."""
    with note_interrupts() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_where_ctrl_c_is_ignored_or_another_threads_nothing_is_noted() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with note_interrupts() as stopped:
        signal.raise_signal(signal.SIGINT)
        assert not stopped()
    found = []

    def look() -> None:
        with note_interrupts() as stopped:
            found.append(stopped())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [False]


def test_a_process_that_is_started_in_the_block_can_be_interrupted() -> None:
    with delay_interrupts():
        told = subprocess.run(
            [sys.executable, "-I", "-c", SHOW_SIGNALS], capture_output=True, check=True
        )
    assert told.stdout == b"True\n"


def test_other_threads_and_a_process_that_ignores_it_are_left_alone() -> None:
    seen = []

    def look() -> None:
        with delay_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_ends_a_process_interrupts_it_and_waits_as_well(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what is in the background
    interrupt_on_termination()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    inside = False
    with pytest.raises(KeyboardInterrupt), delay_interrupts():  # noqa: PT012
        signal.raise_signal(number)
        inside = True
    assert inside
