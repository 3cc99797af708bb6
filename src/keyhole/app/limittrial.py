"""Whether memory is bounded for a sandbox as a whole, or for each of its processes: it is tried.

Called by `keyhole doctor`. Several processes take what each may have and all together may not. A
control group stops one of them; limits of a process do not, and then the row says so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.cgroup import MEMORY, PROCESSES
from keyhole.sandbox.helper import SetupFailed, Streams
from keyhole.sandbox.start import start

if TYPE_CHECKING:
    import socket

    from keyhole.sandbox.launch import Launch

ALLOWED = 256 << 20
"""Bytes that the trial's sandbox may have: an interpreter fits many times."""
EACH = 96 << 20
TOGETHER = 4
"""So many take EACH: one of them fits, all do not."""

_MAX_OUTPUT = 4096

TAKING = """
import json, os, sys
size = int(sys.argv[1])

def take(count):
    gone, hold = os.pipe()
    ends, children = [], []
    for _ in range(count):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(hold)
            for end in (read, *ends):
                os.close(end)
            taken = b"x" * size
            os.write(write, b"x")
            os.read(gone, 1)
            os._exit(0)
        os.close(write)
        ends.append(read)
        children.append(child)
    for end in ends:
        os.read(end, 1)
    os.close(hold)
    return [os.waitpid(child, 0)[1] for child in children].count(0)

for count in sys.argv[2:]:
    print(json.dumps(take(int(count))), flush=True)
"""
"""Each says when it has written all of it, and keeps it until the last has, or has been ended.
Counted are those that live then: the kernel may end one that had all of its memory already."""


@dataclass(frozen=True, slots=True)
class LimitTrial:
    """What was seen of the limits that hold for all processes together."""

    held: bool
    seen: str
    control: str


async def try_limits(launch: Launch, program: bytes) -> LimitTrial:
    """Run the trial in this launch's walls, first with one process, which must get its memory."""
    alone, _ = await _taken(launch, program, 1)
    taken, bounds = await _taken(launch, program, TOGETHER)
    by_group = MEMORY in bounds
    memory = "by control group" if by_group else "each process by itself (no group is delegated)"
    processes = "by control group" if PROCESSES in bounds else "by RLIMIT_NPROC"
    return LimitTrial(
        held=alone == 1 and (taken < TOGETHER or not by_group),
        seen=f"memory {memory}: {taken} of {TOGETHER} processes got theirs; processes {processes}",
        control=f"alone: {alone} of 1",
    )


async def _taken(launch: Launch, program: bytes, count: int) -> tuple[int, frozenset[str]]:
    """How many processes got their memory; none when even who counts them was ended."""
    bounds = dataclasses.replace(launch.bounds, memory=ALLOWED)
    command = (launch.python, "-I", "-S", "-c", TAKING, str(EACH), str(count))
    trial = dataclasses.replace(launch, command=command, bounds=bounds, interactive=False, fault="")
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        running = await start(trial, Streams(null, write_end, null), shut, _ready(program))
    except SetupFailed:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
        os.close(null)
    with os.fdopen(read_end, "rb") as output:
        text = await loop.run_in_executor(None, output.read, _MAX_OUTPUT)
    await running.wait()
    running.close()
    try:
        return int(json.loads(text)), running.bounds
    except (ValueError, TypeError):
        return 0, running.bounds


def shut(door: list[socket.socket]) -> None:
    """Nobody answers: the trial needs no network."""
    for opened in door:
        opened.close()


async def _ready(program: bytes) -> bytes:
    return program
