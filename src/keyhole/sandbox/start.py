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
import socket
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from keyhole.sandbox.launch import Launch

SETUP_SECONDS = 30.0
"""How long the whole set-up may take; it takes about 0.1 s."""

_MAX_DOOR_SOCKETS = 3
_MAX_REPORT = 65536


class SetupFailed(Exception):
    """The walls could not be made or do not stand; nothing untrusted has run."""


@dataclass(frozen=True, slots=True)
class Streams:
    """What the command gets as standard input, output and error."""

    stdin: int
    stdout: int
    stderr: int


class Running:
    """A sandbox whose command runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self.init = _child_of(process.pid)
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
        code = self._process.wait()
        return 128 - code if code < 0 else code

    @property
    def lives(self) -> bool:
        """Whether the sandbox's first process has not ended yet."""
        return self._init_end >= 0 and not select.select([self._init_end], [], [], 0)[0]

    def close(self) -> None:
        """Let go of the sandbox's first process."""
        if self._init_end >= 0:
            os.close(self._init_end)
            self._init_end = -1

    def command_pid(self) -> int | None:
        """The command's process, as the host numbers it: the first child of the sandbox's init."""
        return _child_of(self.init) if self.init else None

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
        self._process.send_signal(signal.SIGKILL)


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
    meanwhile: Callable[[], None] | None = None,
) -> Running:
    """Start the helper, hand its door to `admit`, let it go on, and see the walls asserted.

    `meanwhile` is called while the helper is at work, on another core.
    """
    ours, theirs = socket.socketpair()
    report_end, status_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(status_end, True)
    with ours:
        # Not by asyncio's subprocesses: the helper must be this thread's child (PDEATHSIG).
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own interpreter and module
            [sys.executable, "-I", "-m", "keyhole.sandbox.enter",
             str(theirs.fileno()), str(status_end)],
            stdin=streams.stdin, stdout=streams.stdout, stderr=streams.stderr,
            pass_fds=(theirs.fileno(), status_end), env={}, cwd="/",
        )  # fmt: skip
        theirs.close()
        os.close(status_end)
        try:
            async with asyncio.timeout(SETUP_SECONDS):
                ours.setblocking(False)
                await _send(ours, launch.to_json())
                if meanwhile:
                    meanwhile()
                admit(await _receive_door(ours))
                await _send(ours, await build_filter)
                await _await_walls(report_end, ours)
        except BaseException as error:
            process.kill()
            process.wait()
            if isinstance(error, TimeoutError):
                raise SetupFailed(f"the set-up took over {SETUP_SECONDS:g} s") from None
            raise
        finally:
            os.close(report_end)
    try:
        return Running(process)
    except SetupFailed:
        process.kill()
        process.wait()
        raise


async def _send(control: socket.socket, data: bytes) -> None:
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(control, struct.pack("=I", len(data)) + data)
    except OSError:
        raise SetupFailed("the helper ended before the sandbox was made") from None


async def _receive_door(control: socket.socket) -> list[socket.socket]:
    data, descriptors = b"", []
    while len(data) < 4 or len(data) < 4 + struct.unpack("=I", data[:4])[0]:
        await _readable(control.fileno())
        more, fds, _, _ = socket.recv_fds(control, _MAX_REPORT, _MAX_DOOR_SOCKETS)
        descriptors += fds
        if not more:
            raise SetupFailed("the helper ended before the sandbox was made")
        data += more
    message = json.loads(data[4:])
    if "error" in message:
        raise SetupFailed(message["error"])
    return [socket.socket(fileno=fd) for fd in descriptors]


async def _await_walls(report_end: int, control: socket.socket) -> None:
    """Read what the first process inside asserted; silence is a failure."""
    await _readable(report_end)
    report = os.read(report_end, _MAX_REPORT)
    if report == b"ok":
        return
    if report:
        raise SetupFailed("a wall does not stand: " + "; ".join(json.loads(report)))
    said = ""
    try:
        data = control.recv(_MAX_REPORT)
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
