"""Judges that another process starts: judged, killed and ended by what was handed over (I3, I9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.judge import judge_pool, judge_process
from keyhole.judge.judge_pool import JudgePool
from keyhole.judge.judge_process import JudgeSpawner, start_judge
from keyhole.model.errors import ResourceUnusable
from keyhole.policy.push import RefChange
from keyhole.policy.push_trial import PushUnjudged
from keyhole.system.processes import has_ended
from tests.rigs.sandbox.court import (
    LOOPS,
    case_of,
    children,
    descriptors,
    judged,
    playing,
    simple,
    update,
)
from tests.rigs.waiting import PATIENCE, until_in_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from keyhole.policy.push_trial import UpstreamQuestion

SOURCES = Path(judge_pool.__file__).parents[2]

KEEPER = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
from keyhole.judge.judge_process import JudgeSpawner
spawner = JudgeSpawner()
with socket.socket(fileno=int(sys.argv[2])) as line:
    while word := line.recv(1):
        if word == b"s":
            control, pidfd = spawner.start()
            socket.send_fds(line, [b"ok"], [control.fileno(), pidfd])
            control.close()
            os.close(pidfd)
        else:
            spawner.reap_ended()
            task = "/proc/self/task/%d/children" % os.getpid()
            line.send(str(len(open(task).read().split())).encode())
"""


class Keeper:
    """A process that starts judges for us, and is the parent of them."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", KEEPER, SOURCES, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
            )
        self.line.settimeout(PATIENCE)

    def start(self) -> tuple[socket.socket, int]:
        self.line.send(b"s")
        _, (control, pidfd), _, _ = socket.recv_fds(self.line, 16, 2)
        return socket.socket(fileno=control), pidfd

    async def start_later(self) -> tuple[socket.socket, int]:
        await asyncio.sleep(0)
        return self.start()

    def left(self) -> int:
        """Judges that it has not buried."""
        self.line.send(b"?")
        return int(self.line.recv(16))

    def close(self) -> None:
        self.line.close()
        self.process.wait(PATIENCE)


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.close()


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest, keeper: Keeper) -> Iterator[Callable[..., None]]:
    with playing(str(request.param)) as run:
        yield run


async def stuck(question: UpstreamQuestion) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize("way", ["start", "start_later"])
def test_a_push_is_judged_by_a_child_of_another_process(
    play: Callable[..., None], keeper: Keeper, way: str
) -> None:
    """It finds, it is ended at its time's end, and started ahead; its parent buries it. The process
    that judges has none of them for a child. Control: the jail's own way in the tests beside."""

    async def test() -> None:
        _, main, new, pushed = simple()
        case = case_of(update(None, main), tips=(main,))
        others = children()
        place = JudgePool(start=getattr(keeper, way))
        for _ in range(2):
            place.prepare()
            (found,) = await judged(None, case, within=place)
            assert found.change is RefChange.CREATE
        place.prepare()
        hurried = JudgePool(seconds=0.3, start=getattr(keeper, way))
        with pytest.raises(PushUnjudged, match=r"over 0\.3 s"):
            await judged(pushed, case_of(update(main, new), tips=(main,)), stuck, within=hurried)
        assert children() == others
        for each in (hurried, place):
            await until_in_loop(lambda each=each: not each._coming)  # type: ignore[misc]
            each.close()
        await until_in_loop(lambda: keeper.left() == 0)

    play(test)


def test_a_judge_whose_parent_dies_judges_nothing(play: Callable[..., None]) -> None:
    async def test() -> None:
        keeper = Keeper()
        _, main, new, pushed = simple()

        async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
            keeper.process.kill()
            await until_in_loop(lambda: keeper.process.poll() is not None)
            for _ in range(100):
                yield bytes(10_000)

        place = JudgePool(start=keeper.start)
        case = case_of(update(main, new), tips=(main,))
        with pytest.raises(PushUnjudged, match="ended before its verdict"):
            await judged(pushed, case, ask, within=place)
        with pytest.raises(PushUnjudged, match="no judge can be started"):
            await judged(pushed, case, within=place)
        place.close()
        keeper.close()

    play(test)


def test_one_that_comes_when_nobody_waits_any_more_is_not_lost(
    play: Callable[..., None], keeper: Keeper
) -> None:
    """A push that was given up leaves its judge to the next; a closed jail ends it."""

    async def test() -> None:
        _, main, _, _ = simple()
        case = case_of(update(None, main), tips=(main,))
        asked, go, come = asyncio.Event(), asyncio.Event(), []

        async def slow() -> tuple[socket.socket, int]:
            asked.set()
            await go.wait()
            come.append(True)
            return keeper.start()

        place = JudgePool(start=slow)
        task = asyncio.create_task(judged(None, case, within=place))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert keeper.left() == 0
        go.set()
        (found,) = await judged(None, case, within=place)
        assert found.change is RefChange.CREATE
        await until_in_loop(lambda: keeper.left() == 0)
        go.clear()
        place.prepare()
        await asyncio.sleep(0)
        before = descriptors()
        place.close()
        go.set()
        await until_in_loop(lambda: len(come) == 2)
        await until_in_loop(lambda: keeper.left() == 0 and descriptors() == before)

    play(test)


@pytest.mark.parametrize("error", [OSError("no"), ResourceUnusable("no")])
def test_one_that_cannot_be_started_elsewhere_is_said_when_there_is_a_push(
    play: Callable[..., None], error: Exception
) -> None:
    async def test() -> None:
        async def fail() -> tuple[socket.socket, int]:
            raise error

        _, main, _, _ = simple()
        place = JudgePool(start=fail)
        place.prepare()
        with pytest.raises(PushUnjudged, match="no judge can be started: no"):
            await judged(None, case_of(update(None, main), tips=(main,)), within=place)
        place.close()

    play(test)


def test_a_bailiff_ends_what_it_started() -> None:
    before, others = descriptors(), children()
    one = JudgeSpawner()
    held = [one.start() for _ in range(2)]
    assert len(children() - others) == 2
    signal.pidfd_send_signal(held[0][1], signal.SIGKILL)
    assert has_ended(held[0][1], PATIENCE)
    one.reap_ended()
    assert len(children() - others) == 1
    one.close()
    assert children() == others
    for control, pidfd in held:
        control.close()
        os.close(pidfd)
    assert descriptors() == before


def test_nothing_is_left_of_one_that_could_not_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pidfd to be had: the process that was already started is ended, not forgotten."""

    def full(*_: int) -> int:
        raise OSError(24, "too many open files")

    before, others = descriptors(), children()
    for module, name in ((os, "pidfd_open"), (os, "dup")):
        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(module, name, full)
            JudgeSpawner().start()
            pytest.fail("it was started")
    assert (descriptors(), children()) == (before, others)
    control, pidfd = start_judge()
    control.close()
    judge_process.end_process(pidfd)
    assert (descriptors(), children()) == (before, others)
