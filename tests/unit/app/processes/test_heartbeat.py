"""The data plane's pulse and the watch that counts it (I12)."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from keyhole.app.processes import heartbeat
from keyhole.app.processes.heartbeat import (
    QUIET_TURNS,
    STUCK_TURNS,
    HeartbeatMonitor,
    HeartbeatReader,
    HeartbeatSender,
    make_heartbeat_pipe,
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.005)


def test_a_loop_that_turns_is_heard_and_not_called_stuck(quick: None) -> None:
    async def watched() -> int:
        loop = asyncio.get_running_loop()
        reading, writing = make_heartbeat_pipe()
        turns: list[bool] = []
        done = asyncio.Event()

        def turned() -> None:
            turns.append(True)
            if len(turns) > 2 * STUCK_TURNS:
                done.set()

        pulse = HeartbeatSender(loop, writing)
        watch = HeartbeatMonitor(loop, reading, lambda: pytest.fail("it turns"), turned)
        await done.wait()
        watch.close()
        pulse.close()
        return len(turns)

    assert asyncio.run(watched()) > STUCK_TURNS


def test_a_loop_that_stands_still_is_called_stuck_once(quick: None) -> None:
    async def watched() -> int:
        loop = asyncio.get_running_loop()
        reading, writing = make_heartbeat_pipe()
        found: list[bool] = []
        done = asyncio.Event()

        def stuck() -> None:
            found.append(True)
            done.set()

        watch = HeartbeatMonitor(loop, reading, stuck)
        await done.wait()
        await asyncio.sleep(0.05)
        watch.close()
        os.close(writing)
        return len(found)

    assert asyncio.run(watched()) == 1


def test_turns_of_the_watch_are_counted_and_not_the_time_between_them() -> None:
    """A host that was suspended, or a tree that was stopped: however long, it is one turn."""
    reading, writing = make_heartbeat_pipe()
    beats = HeartbeatReader(reading)
    for turn in range(1, STUCK_TURNS):
        assert not beats.turn()
        assert beats.quiet is (turn >= QUIET_TURNS)
        assert not beats.stuck
    os.write(writing, b".")
    assert beats.turn()
    assert not beats.quiet
    for _ in range(STUCK_TURNS - 1):
        beats.turn()
    assert [beats.stuck, beats.turn(), beats.stuck] == [False, False, True]
    beats.close()
    beats.close()
    os.close(writing)


def test_a_pulse_that_nobody_reads_neither_blocks_nor_ends() -> None:
    async def beats() -> None:
        reading, writing = make_heartbeat_pipe()
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, bytes(4096)):
                """Until it is full."""
        pulse = HeartbeatSender(asyncio.get_running_loop(), writing)
        assert pulse._timer is not None
        os.close(reading)
        pulse._beat()  # nor does it fail when the watch is gone
        pulse.close()
        pulse.close()

    asyncio.run(beats())
