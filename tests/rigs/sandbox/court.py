"""What the tests of the jail share: pushes, an upstream that answers, and what must not be left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from keyhole.confine.judge_filter import build_judge_filter
from keyhole.judge.judge_pool import JudgePool, SessionJudges
from keyhole.model.decision import Reason
from keyhole.model.errors import UpstreamFailed
from keyhole.model.glob import Glob
from keyhole.policy.push_trial import PushCase, PushFinding, UpstreamQuestion
from keyhole.policy.schema import DEFAULT_DENY_PATHS
from keyhole.wire.receive_pack import RefCommand
from tests.rigs.waiting import until_in_loop
from tests.rigs.wire.packing import History, Upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

BRANCH = "refs/heads/agent/x"
GLOBS = tuple(Glob(tuple(p.split("/"))) for p in (*DEFAULT_DENY_PATHS, "**/Makefile"))
BASE = {".github": {"workflows": {"ci.yml": "1"}}, "src": {"a": "1"}}


def children() -> set[int]:
    """Processes of ours, ended or not."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@contextlib.contextmanager
def playing(loop: str) -> Iterator[Callable[[Callable[[], Awaitable[None]]], None]]:
    """Runs a test's own coroutine in a kind of loop, and finds what it left behind."""
    build_judge_filter()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.get_loop().run_until_complete(asyncio.sleep(0))
        gc.collect()
        before, others = descriptors(), children()

        def run(test: Callable[[], Awaitable[None]]) -> None:
            async def whole() -> None:
                await test()
                await until_in_loop(lambda: children() == others)

            runner.run(whole())
            gc.collect()
            assert descriptors() == before

        yield run


def file_of(data: bytes) -> int:
    descriptor = os.memfd_create("pack", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    return descriptor


def case_of(*commands: RefCommand, tips: tuple[bytes, ...] = (), form: str = "sha1") -> PushCase:
    return PushCase(commands, frozenset(tip.hex() for tip in tips), GLOBS, form)


def update(old: bytes | None, new: bytes, ref: str = BRANCH) -> RefCommand:
    return RefCommand(old.hex() if old else "0" * 2 * len(new), new.hex(), ref)


def asker(
    upstream: Upstream, chunk: int = 100
) -> Callable[[UpstreamQuestion], AsyncIterator[bytes]]:
    async def ask(question: UpstreamQuestion) -> AsyncIterator[bytes]:
        data = upstream.pack(question)
        if data is None:
            raise UpstreamFailed(Reason.UPSTREAM_REFUSED, "not our ref")
        for at in range(0, len(data), chunk):
            yield data[at : at + chunk]

    return ask


async def silent(question: UpstreamQuestion) -> AsyncIterator[bytes]:
    if question.wants:
        raise UpstreamFailed(Reason.UPSTREAM_REFUSED, "nobody is there")
    yield b""


async def judged(
    data: bytes | None,
    case: PushCase,
    ask: Callable[[UpstreamQuestion], AsyncIterator[bytes]] = silent,
    *,
    offset: int = 0,
    within: JudgePool | SessionJudges | None = None,
) -> tuple[PushFinding, ...]:
    """One push, in a jail of its own unless there is one."""
    place = within or JudgePool()
    descriptor = None if data is None else file_of(data)
    try:
        return await place.judge(descriptor, offset, case, ask)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        if isinstance(place, JudgePool) and within is None:
            place.close()


def simple() -> tuple[History, bytes, bytes, bytes]:
    """A tip, and a push on it."""
    history = History()
    main = history.commit(BASE)
    new = history.commit({**BASE, "src": {"a": "2"}}, main)
    return history, main, new, history.push([new], [main])
