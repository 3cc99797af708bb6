"""Judges that another process starts come in the order in which they were asked for."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

import pytest

from keyhole.app.processes.awaited_judges import AwaitedJudges


def judge() -> list[int]:
    """A socket and another descriptor, as they come."""
    ours, theirs = socket.socketpair()
    theirs.close()
    return [ours.detach(), os.eventfd(0)]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_each_gets_its_own_or_why_there_is_none() -> None:
    async def main() -> None:
        judges = AwaitedJudges(asyncio.get_running_loop())
        first, second = judges.expect(), judges.expect()
        judges.arrived("no more processes", [])
        judges.arrived("", judge())
        with pytest.raises(OSError, match="no more processes"):
            await first
        control, pidfd = await second
        control.close()
        os.close(pidfd)

    asyncio.run(main())


def test_one_that_nobody_waits_for_any_more_is_let_go() -> None:
    async def main() -> None:
        judges = AwaitedJudges(asyncio.get_running_loop())
        before = open_descriptors()
        coming = judges.expect()
        coming.cancel()
        judges.arrived("", judge())
        with suppress(asyncio.CancelledError):
            await coming
        assert open_descriptors() == before

    asyncio.run(main())


def test_where_none_will_come_everybody_hears_it() -> None:
    async def main() -> None:
        judges = AwaitedJudges(asyncio.get_running_loop())
        waiting = [judges.expect(), judges.expect()]
        judges.abandon("the keeper has ended")
        for each in waiting:
            with pytest.raises(OSError, match="the keeper has ended"):
                await each

    asyncio.run(main())
