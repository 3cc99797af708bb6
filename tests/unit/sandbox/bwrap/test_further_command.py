"""A further command is compared with the sandbox's first process, from outside."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.bwrap import further_command
from keyhole.sandbox.bwrap.further_command import further_failures, start_further_command
from keyhole.sandbox.handover import StandardStreams
from keyhole.sandbox.sandbox_init import EXEC_DESCRIPTORS, NO_PROCESS, READY, ExecConfig

CONFIG = ExecConfig(command=("true",), directory="/", environment={}, interactive=False)
STREAMS = StandardStreams(0, 1, 2)


def test_a_process_without_walls_is_found_out() -> None:
    """This one has no filter, though its namespaces are equal to its own."""
    found = further_failures(os.getpid(), os.getpid())
    assert "no system-call filter is in force" in found
    assert "new privileges can be gained" in found
    assert not any("namespace" in each or "control group" in each for each in found)


def test_a_process_that_cannot_be_looked_at_fails() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert further_failures(ended.pid, os.getpid()) == [
        "it cannot be looked at: No such file or directory"
    ]


def _asked(answer: bytes, *, close: bool = False) -> None:
    """Ask a first process that answers at the gate with these bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def ask() -> None:
        asking = asyncio.ensure_future(start_further_command(ours, os.getpid(), CONFIG, STREAMS))
        await asyncio.sleep(0)
        _, descriptors, _, _ = socket.recv_fds(theirs, 16, EXEC_DESCRIPTORS)
        if not close:
            os.write(descriptors[-1], answer)
        for each in descriptors:
            os.close(each)
        await asking

    with ours, theirs:
        asyncio.run(ask())


def test_the_command_does_not_run_behind_a_wall_that_does_not_stand() -> None:
    """The process that answers is a child of this one, which has no walls; it is killed."""
    assert _in_a_child(READY) == -9


def test_a_process_that_is_not_of_the_sandbox_is_refused_and_not_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attack: code inside ends the process at the gate, and a program of the person's gets its
    number. The test above is the control."""
    assert further_command.is_inside(os.getpid(), os.getppid())
    assert not further_command.is_inside(os.getpid(), -1)
    monkeypatch.setattr(further_command, "is_inside", lambda *_: False)
    assert _in_a_child(READY) == 0


def test_a_sandbox_without_a_process_to_spare_and_one_that_ends_are_told_apart() -> None:
    with pytest.raises(Refused, match=r"no further process can be made inside \(limits.processes"):
        _asked(NO_PROCESS)
    with pytest.raises(Refused, match="it was ended before it started"):
        _asked(b"", close=True)
    with pytest.raises(Refused, match="it was ended before it started"):
        _asked(b"other")


def test_a_sandbox_that_has_ended_is_told() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with ours, pytest.raises(Refused, match="the sandbox has just ended"):
        asyncio.run(start_further_command(ours, os.getpid(), CONFIG, STREAMS))


def _in_a_child(answer: bytes) -> int:
    """Answer from a child, which is refused; returns its exit code."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        _, descriptors, _, _ = socket.recv_fds(theirs, 16, EXEC_DESCRIPTORS)
        os.write(descriptors[-1], answer)
        os.read(descriptors[-1], 16)
        os._exit(0)
    try:
        refused = pytest.raises(Refused, match=r"a wall does not stand: .*no system-call filter")
        with ours, theirs, refused:
            asyncio.run(start_further_command(ours, os.getpid(), CONFIG, STREAMS))
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status
