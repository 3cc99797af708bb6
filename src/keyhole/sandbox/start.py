"""Starting a sandbox from outside: exec the helper, take the door, admit it, let go.

The order is the promise (I2): the door is in the gateway's hands before the helper may go on,
and if this process dies at any point the helper does too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import struct
from typing import TYPE_CHECKING

from keyhole.sandbox.helper import (
    MAX_REPORT,
    SETUP_SECONDS,
    TOOK_TOO_LONG,
    DoorReader,
    Helper,
    SetupFailed,
    Streams,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from keyhole.sandbox.interface import Notice
    from keyhole.sandbox.launch import Launch


_ENDING_SECONDS = 5.0
"""How long the end of a sandbox that has begun to end may take, all of its processes included."""


class Running:
    """A sandbox whose command runs."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self.refusal = helper.refusal()
        self.pid = helper.pid
        self.bounds = helper.group.bounds if helper.group else frozenset[str]()
        """What is bounded for all processes together, by the controllers' names."""
        self.init = _child_of(helper.pid)
        self._init_end = -1
        if self.init:
            with contextlib.suppress(ProcessLookupError):  # a short command may have ended by now
                self._init_end = os.pidfd_open(self.init)

    async def wait(self) -> int:
        """The command's exit code, as a shell tells it; by then no process is left inside."""
        pidfd = os.pidfd_open(self.pid)
        try:
            await _readable(pidfd)
            if self._init_end >= 0:
                await _readable(self._init_end)
        finally:
            os.close(pidfd)
        code = self._helper.wait()
        return 128 - code if code < 0 else code

    @property
    def lives_on(self) -> bool:
        """Whether the sandbox's first process has not ended, nor does in a moment: one that is
        ending has lost its mounts before it is seen as ended."""
        if self._init_end < 0:
            return False
        return not select.select([self._init_end], [], [], _ENDING_SECONDS)[0]

    def close(self) -> None:
        """Let go of the sandbox's first process."""
        if self._init_end >= 0:
            os.close(self._init_end)
            self._init_end = -1

    def command_pid(self) -> int | None:
        """The command's process, as the host numbers it: the first child of the sandbox's init."""
        return _child_of(self.init) if self.init else None

    def watch(self, told: Callable[[Notice], None]) -> contextlib.AbstractContextManager[None]:
        """Nobody but root can enter it, and there is no engine to ask."""
        return contextlib.nullcontext()

    def is_stopped(self) -> bool:
        """Whether the command itself is stopped, as Ctrl-Z does it.

        A shell that starts a program waits in vfork() until that has become another. If the key
        comes in between, the child is stopped, and the shell waits for it in a state of its own.
        """
        pid = self.command_pid()
        state = _state_of(pid)
        if state == "D" and pid is not None:
            state = _state_of(_child_of(pid))
        return state == "T"

    def forward(self, number: int) -> None:
        """Give the command a signal that was meant for it."""
        target = self.command_pid()
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)

    def resume(self) -> None:
        """Let the command go on after Ctrl-Z, and with it whoever was stopped in its job."""
        target = self.command_pid()
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                job = os.getpgid(target)
                if job != os.getpgrp():
                    os.killpg(job, signal.SIGCONT)

    def kill(self) -> None:
        """End everything in the sandbox at once: its init dies, and so does all below."""
        if self._init_end >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_end, signal.SIGKILL)
        self._helper.kill()


def _state_of(pid: int | None) -> str:
    """The letter of its state, as proc(5) has it; none where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _child_of(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except FileNotFoundError:
        if not os.path.exists("/proc/thread-self/children"):
            raise SetupFailed("this kernel does not list children (CONFIG_PROC_CHILDREN)") from None
        return None
    except OSError:
        return None
    return int(children[0]) if children else None


async def start(
    launch: Launch,
    streams: Streams,
    admit: Callable[[list[socket.socket]], None],
    build_filter: Awaitable[bytes],
    helper: Helper | None = None,
) -> Running:
    """Tell the helper, hand its door to `admit`, let it go on, and see the walls asserted.

    `helper` is one that was started ahead, perhaps told and let go on; without it, one is started
    here.
    """
    # Not by asyncio's subprocesses: the helper must be this thread's child (PDEATHSIG).
    helper = helper or Helper(launch.fault)
    try:
        async with asyncio.timeout(SETUP_SECONDS):
            if not helper.told:
                helper.tell(launch, streams)
            helper.control.setblocking(False)
            if helper.released:
                admit(helper.door)
            else:
                admit(await _receive_door(helper))
                await _send(helper.control, await build_filter)
            await _await_walls(helper.report, helper.control)
        running = Running(helper)
    except BaseException as error:
        helper.close()
        if isinstance(error, TimeoutError):
            raise SetupFailed(TOOK_TOO_LONG) from None
        raise
    helper.let_go()
    return running


async def _send(control: socket.socket, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(control, struct.pack("=I", len(data)) + data)
    except OSError:
        raise SetupFailed("the helper ended before the sandbox was made") from None


async def _receive_door(helper: Helper) -> list[socket.socket]:
    await _readable(helper.control.fileno())
    helper.refusal()  # comes before the door
    reader = DoorReader()
    while not reader.complete:
        await _readable(helper.control.fileno())
        reader.read(helper.control)
    return reader.sockets()


async def _await_walls(report_end: int, control: socket.socket) -> None:
    """Read what the first process inside asserted; silence is a failure."""
    await _readable(report_end)
    report = os.read(report_end, MAX_REPORT)
    if report == b"ok":
        return
    if report:
        raise SetupFailed("a wall does not stand: " + "; ".join(report.decode("ascii").split("\n")))
    said = ""
    try:
        data = control.recv(MAX_REPORT)
        said = json.loads(data[4:]).get("error", "") if data else ""
    except (OSError, ValueError):
        said = ""
    raise SetupFailed(said or "bubblewrap ended before the sandbox was made")


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
