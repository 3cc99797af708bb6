"""Tests whether memory is limited for a sandbox as a whole, or for each of its processes.

Called by `keyhole doctor`. Several processes each allocate an allowed amount, which together is
over the limit. A control group stops one of them; limits of a process do not, and then the row
shows it.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from keyhole.confine.cgroup import MEMORY, PROCESSES
from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.bwrap_start import built_filter, start_sandbox
from keyhole.sandbox.handover import StandardStreams

if TYPE_CHECKING:
    import socket

    from keyhole.sandbox.launch import Launch

ALLOWED = 256 << 20
"""Bytes that the trial's sandbox may have: an interpreter fits many times."""
EACH = 96 << 20
TOGETHER = 4
"""The number of processes that take EACH: one of them fits, all together do not."""

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
"""Each process reports when it has written all of its memory, and keeps it until the last one has,
or was ended. Then the living ones are counted: the kernel may end one that had all of its
memory."""


class LimitCheck(Struct, frozen=True):
    """The observed limits for all processes together."""

    held: bool
    seen: str
    control: str


async def check_limits(launch: Launch, program: bytes) -> LimitCheck:
    """Run the trial in this launch's walls, first with one process, which must get its memory."""
    alone, _ = await _taken(launch, program, 1)
    taken, bounds = await _taken(launch, program, TOGETHER)
    by_group = MEMORY in bounds
    memory = "by control group" if by_group else "each process by itself (no group is delegated)"
    processes = "by control group" if PROCESSES in bounds else "by RLIMIT_NPROC"
    return LimitCheck(
        held=alone == 1 and (taken < TOGETHER or not by_group),
        seen=f"memory {memory}: {taken} of {TOGETHER} processes got theirs; processes {processes}",
        control=f"alone: {alone} of 1",
    )


async def _taken(launch: Launch, program: bytes, count: int) -> tuple[int, frozenset[str]]:
    """How many processes got their memory; 0 when even the counting process was killed."""
    bounds = msgspec.structs.replace(launch.bounds, memory=ALLOWED)
    command = (launch.python, "-I", "-S", "-c", TAKING, str(EACH), str(count))
    trial = msgspec.structs.replace(
        launch, command=command, bounds=bounds, interactive=False, fault=""
    )
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        running = await start_sandbox(
            trial, StandardStreams(null, write_end, null), ignore_door, built_filter(program)
        )
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


def ignore_door(door: list[socket.socket]) -> None:
    """Do nothing with the door: the trial needs no network."""
    for opened in door:
        opened.close()
