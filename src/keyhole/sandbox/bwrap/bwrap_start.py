"""Starts a sandbox from outside: starts the helper, takes its door, has it admitted, and lets it go
on.

The order matters (I2): the gateway holds the door before the helper may go on, and if this process
dies at any point the helper dies too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
from typing import TYPE_CHECKING

from keyhole.model.errors import SetupFailed
from keyhole.sandbox.bwrap.helper import Helper
from keyhole.sandbox.bwrap.job_control import child_of, continue_job, is_stopped
from keyhole.sandbox.files.mount_plan import kept_sources
from keyhole.sandbox.handover import (
    MAX_REPORT,
    SETUP_SECONDS,
    TOOK_TOO_LONG,
    DoorReader,
    StandardStreams,
)
from keyhole.sandbox.homes.size_watch import watch_size
from keyhole.system.event_loop import wait_readable
from keyhole.system.processes import has_ended

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from keyhole.sandbox.interface import SandboxNotice
    from keyhole.sandbox.launch import Launch


_ENDING_SECONDS = 5.0
"""How long a sandbox may take to end, all of its processes included."""


class RunningBubblewrap:
    """A sandbox with its running command."""

    def __init__(self, helper: Helper, kept: tuple[tuple[str, ...], int] = ((), 0)) -> None:
        """`kept` are the kept trees of its launch, and the bytes that they may hold."""
        self._helper = helper
        self._kept, self._kept_bytes = kept
        self.refusal = helper.refusal()
        self.commands = helper.commands
        self.pid = helper.pid
        self.bounds = helper.group.bounds if helper.group else frozenset[str]()
        """The controllers that limit all processes of the sandbox together."""
        self.init = child_of(helper.pid)
        self._init_end = -1
        if self.init:
            with contextlib.suppress(ProcessLookupError):  # a short command may have ended by now
                self._init_end = os.pidfd_open(self.init)

    async def wait(self) -> int:
        """The command's exit code, as in a shell; by then no process is left inside."""
        pidfd = os.pidfd_open(self.pid)
        try:
            await wait_readable(pidfd)
            if self._init_end >= 0:
                await wait_readable(self._init_end)
        finally:
            os.close(pidfd)
        code = self._helper.wait()
        return 128 - code if code < 0 else code

    @property
    def lives_on(self) -> bool:
        """Whether the sandbox's first process runs, and does not end within a moment: a process
        that is ending has lost its mounts before it is seen as ended."""
        if self._init_end < 0:
            return False
        return not has_ended(self._init_end, _ENDING_SECONDS)

    def close(self) -> None:
        """Close the descriptors that lead to the sandbox's first process."""
        if self.commands is not None:
            self.commands.close()
        if self._init_end >= 0:
            os.close(self._init_end)
            self._init_end = -1

    def command_pid(self) -> int | None:
        """The command's process, as the host numbers it: the first child of the sandbox's init."""
        return child_of(self.init) if self.init else None

    def watch(
        self, told: Callable[[SandboxNotice], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Watch the size of its kept trees. Only root can enter it, and there is no engine to
        ask."""
        if not self._kept:
            return contextlib.nullcontext()
        return watch_size(self._kept, self._kept_bytes, self.kill, told)

    def is_stopped(self) -> bool:
        """Whether the command itself is stopped, as by Ctrl-Z."""
        return is_stopped(self.command_pid())

    def forward(self, number: int) -> None:
        """Forward a signal to the command."""
        target = self.command_pid()
        if target is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(target, number)

    def resume(self) -> None:
        """Continue the command after Ctrl-Z, and with it all stopped processes of its job."""
        target = self.command_pid()
        if target is not None:
            continue_job(target)

    def kill(self) -> None:
        """End everything in the sandbox at once: its init dies, and so does all below."""
        if self._init_end >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_end, signal.SIGKILL)
        self._helper.kill()


def built_filter(program: bytes) -> asyncio.Future[bytes]:
    """A filter that is built already, for `start_sandbox`.

    Not a coroutine, about which Python warns when Ctrl-C comes before it is awaited.
    """
    built = asyncio.get_running_loop().create_future()
    built.set_result(program)
    return built


async def start_sandbox(
    launch: Launch,
    streams: StandardStreams,
    admit: Callable[[list[socket.socket]], None],
    build_filter: Awaitable[bytes],
    helper: Helper | None = None,
) -> RunningBubblewrap:
    """Send the launch to the helper, pass its door to `admit`, let it continue, and wait until the
    walls are asserted.

    `helper` is one that was started early and may already have its launch; without it, one is
    started here.
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
        running = RunningBubblewrap(helper, (kept_sources(launch.files), launch.kept_bytes))
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
    await wait_readable(helper.control.fileno())
    helper.refusal()  # comes before the door
    reader = DoorReader()
    while not reader.complete:
        await wait_readable(helper.control.fileno())
        reader.read(helper.control)
    return reader.sockets()


async def _await_walls(report_end: int, control: socket.socket) -> None:
    """Read the report of the first process inside; no report is a failure."""
    await wait_readable(report_end)
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
