"""Answers `keyhole exec` for one sandbox, in the process that holds it.

`run.py` hands connections over; this module is imported at the first one. A connection lasts as
long as its caller: when the caller is gone, its command is hung up and then killed. Processes that
the command detached stay, as those of the first command do, until the sandbox ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.exec_socket import (
    ASK,
    ASK_DESCRIPTORS,
    ATTACH,
    MAX_REQUEST,
    ExecRequest,
)
from keyhole.control.peer import OwnIdentity, RefusedPeer, identify
from keyhole.control.received_door import namespace_of
from keyhole.model.errors import Refused, Unparsable
from keyhole.model.text import visible
from keyhole.sandbox.bwrap.further_command import start_further_command
from keyhole.sandbox.handover import StandardStreams
from keyhole.sandbox.sandbox_init import ExecConfig
from keyhole.system.event_loop import wait_readable
from keyhole.system.processes import has_ended, kill_process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyhole.control.peer import Peer
    from keyhole.sandbox.bwrap.further_command import StartedCommand

MAX_COMMANDS = 32
"""Further commands of one sandbox at a time: terminals of a person, and a few scripts."""

MAX_ASKING = 32
"""Connections beyond that number, which are told why they are refused."""

REQUEST_SECONDS = 5.0
"""How long a caller may take to send its request."""

HANGUP_SECONDS = 5.0
"""How long a command may take to end by itself when its caller is gone."""

MAX_NAME = 256
"""Characters of a program's name in an audit event."""

_DEVICE_NULL = os.makedev(1, 3)
_PTY_MAJORS = range(136, 144)
"""Inner ends of pseudo-terminals, from Documentation/admin-guide/devices.txt."""


class ExecSandbox(Struct, frozen=True):
    """The sandbox, as its further commands need it."""

    commands: socket.socket
    """Leads to its first process."""
    init: int
    """The host's number of that process."""
    directory: str
    """The directory in which the first command started."""
    trees: tuple[str, ...]
    """The trees that it can write, in which a caller's directory is the same inside."""
    note: Callable[..., None]
    """Records an event."""
    closed: Callable[[], str]
    """Why no further command may start; empty while one may."""
    attach: Callable[[], tuple[int, int]] | None = None
    """Attaches a terminal to the first command; None if that has the terminal of a person."""

    def directory_for(self, caller: str) -> str:
        """The directory to start in: the caller's, if the sandbox works there."""
        within = any(caller == tree or caller.startswith(tree + "/") for tree in self.trees)
        return caller if within else self.directory


class ExecEndpoint:
    """The further commands of one sandbox."""

    def __init__(self, sandbox: ExecSandbox) -> None:
        self._sandbox = sandbox
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with own:
            self._own = OwnIdentity(os.geteuid(), namespace_of(own))

    def take(self, connection: socket.socket) -> None:
        """Answer on a connection that was accepted."""
        if len(self._tasks) >= MAX_COMMANDS + MAX_ASKING:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._answer(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all commands."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(False)
            # 1. Authorise: a process of this user and of this network namespace.
            peer = identify(connection, self._own)
            if isinstance(peer, RefusedPeer):
                self._sandbox.note("exec-refused", why=peer.why, by=peer.pid)
                return
            try:
                started = await self._start(connection, peer)
                if started is None:
                    return
            except (Refused, Unparsable) as error:
                _refuse(connection, str(error))
                return
            except TimeoutError:
                return
            finally:
                peer.close()
            try:
                await self._attend(connection, started)
            finally:
                self._running -= 1
                os.close(started.pidfd)

    async def _start(self, connection: socket.socket, peer: Peer) -> StartedCommand | None:
        """Start what the request asks for; None when it attached a terminal."""
        async with asyncio.timeout(REQUEST_SECONDS):
            await wait_readable(connection.fileno())
        word, descriptors, _, _ = socket.recv_fds(connection, len(ATTACH), ASK_DESCRIPTORS)
        try:
            if word == ATTACH:
                self._attach(connection, peer)
                return None
            if word != ASK or len(descriptors) != ASK_DESCRIPTORS:
                raise Unparsable("a request has four descriptors")
            # 2. Validate: the words, and that no descriptor leads anywhere else.
            request = ExecRequest.read(os.pread(descriptors[0], MAX_REQUEST, 0))
            check_streams(descriptors[1:], interactive=request.interactive)
            if why := self._sandbox.closed():
                raise Refused(why)
            if self._running >= MAX_COMMANDS:
                raise Refused(f"{MAX_COMMANDS} commands of `keyhole exec` run there already")
            # 3. Touch: it runs once its walls were compared.
            self._running += 1
            try:
                return await self._run(request, StandardStreams(*descriptors[1:]), connection, peer)
            except BaseException:
                self._running -= 1
                raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def _run(
        self, request: ExecRequest, streams: StandardStreams, connection: socket.socket, peer: Peer
    ) -> StartedCommand:
        sandbox = self._sandbox
        config = ExecConfig(
            command=request.command,
            directory=sandbox.directory_for(request.directory),
            environment=request.environment,
            interactive=request.interactive,
        )
        name = visible(request.command[0])[:MAX_NAME]
        # Recorded before it runs (I8); its words may hold a secret of the person's.
        sandbox.note("exec", command=name, by=peer.pid)
        try:
            started = await start_further_command(sandbox.commands, sandbox.init, config, streams)
        except Refused as error:
            sandbox.note("exec-refused", why=str(error), by=peer.pid)
            raise
        try:
            answer = json.dumps({"started": started.pid}).encode("ascii")
            socket.send_fds(connection, [answer], [started.pidfd, started.line])
        except OSError:
            pass  # the caller is gone, which `_attend` finds
        finally:
            os.close(started.line)
        return started

    def _attach(self, connection: socket.socket, peer: Peer) -> None:
        if self._sandbox.attach is None:
            raise Refused("its command has the terminal in which it was started")
        try:
            attached = self._sandbox.attach()
        except OSError as error:
            raise Refused(str(error)) from None
        self._sandbox.note("attach", by=peer.pid)
        try:
            with contextlib.suppress(OSError):
                socket.send_fds(connection, [b'{"attached": true}'], attached)
        finally:
            for descriptor in attached:
                os.close(descriptor)

    async def _attend(self, connection: socket.socket, started: StartedCommand) -> None:
        """Wait until the caller is gone, and end its command."""
        try:
            await wait_readable(connection.fileno())
        finally:
            if not has_ended(started.pidfd):
                with contextlib.suppress(ProcessLookupError):
                    for number in (signal.SIGHUP, signal.SIGCONT):
                        signal.pidfd_send_signal(started.pidfd, number)
        try:
            async with asyncio.timeout(HANGUP_SECONDS):
                await wait_readable(started.pidfd)
        except TimeoutError:
            kill_process(started.pidfd)


def check_streams(descriptors: Sequence[int], *, interactive: bool) -> None:
    """Raise Refused unless each is a pseudo-terminal, an anonymous pipe or /dev/null: anything else
    could lead out of the sandbox."""
    for number, descriptor in enumerate(descriptors):
        status = os.fstat(descriptor)
        device = status.st_rdev if stat.S_ISCHR(status.st_mode) else None
        terminal = device is not None and os.major(device) in _PTY_MAJORS
        pipe = os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:[")
        if number == 0 and interactive and not terminal:
            raise Refused("standard input is not a terminal")
        if not (terminal or pipe or device == _DEVICE_NULL):
            raise Refused("a stream is neither a terminal nor a pipe")


def _refuse(connection: socket.socket, why: str) -> None:
    with contextlib.suppress(OSError):
        connection.send(json.dumps({"refused": visible(why)[:1000]}).encode("ascii"))
