"""Starts a further command in a running sandbox: `keyhole exec`.

Nothing is joined from outside. The sandbox's first process forks the command, which so has its
walls by inheritance; it waits at a gate until this module has compared it with that process from
outside (I2). Called by the process that holds the sandbox.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Refused
from keyhole.sandbox.sandbox_init import EXEC_WORD, GO, NO_PROCESS, READY
from keyhole.system.event_loop import wait_readable
from keyhole.system.processes import has_ended, kill_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from keyhole.sandbox.handover import StandardStreams
    from keyhole.sandbox.sandbox_init import ExecConfig

GATE_SECONDS = 10.0
"""How long a new process may take to reach the gate. It takes milliseconds; code inside can stop
it."""

_CREDENTIALS = struct.Struct("=iII")
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_EMPTY_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SECCOMP_FILTER = "2"
ENDED = "the sandbox has just ended"


class StartedCommand(Struct, frozen=True):
    """A further command that runs. Its receiver closes both descriptors."""

    pid: int
    """The process, as the host numbers it."""
    pidfd: int
    line: int
    """The socket on which the sandbox's first process sends the exit code."""


async def start_further_command(
    commands: socket.socket, init: int, config: ExecConfig, streams: StandardStreams
) -> StartedCommand:
    """Start one. `commands` leads to the sandbox's first process, `init` is its number. Raises
    Refused."""
    line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gate, their_gate = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    memory = os.memfd_create("keyhole-exec", os.MFD_CLOEXEC)
    pid = pidfd = -1
    with line, gate:
        try:
            with their_line, their_gate:
                # The kernel then attaches the sender's number, which no code inside can choose.
                gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                _write_all(memory, config.packed())
                given = [memory, *_numbers(streams), their_line.fileno(), their_gate.fileno()]
                _send(commands, given)
            gate.setblocking(False)
            pid = await _reached(gate)
            pidfd = os.pidfd_open(pid)
            broken = further_failures(pid, init)
            if has_ended(pidfd):
                raise Refused("it was ended before it started")
            if broken:
                raise Refused("a wall does not stand: " + "; ".join(broken))
            gate.send(GO)
            return StartedCommand(pid, pidfd, line.detach())
        except BaseException as error:
            if pidfd >= 0:
                # Attack: code inside ends the process at the gate, so that its number may be that
                # of a process of the host by now.
                if is_inside(pid, init):
                    kill_process(pidfd)
                os.close(pidfd)
            if isinstance(error, OSError):
                raise Refused("it was ended before it started") from None
            raise
        finally:
            os.close(memory)


def _numbers(streams: StandardStreams) -> tuple[int, int, int]:
    return streams.stdin, streams.stdout, streams.stderr


def _send(commands: socket.socket, given: Sequence[int]) -> None:
    try:
        socket.send_fds(commands, [EXEC_WORD], given, socket.MSG_DONTWAIT)
    except BlockingIOError:
        raise Refused("the sandbox's first process does not answer") from None
    except OSError:
        raise Refused(ENDED) from None


async def _reached(gate: socket.socket) -> int:
    """Wait until the new process is at the gate; returns its number."""
    try:
        async with asyncio.timeout(GATE_SECONDS):
            await wait_readable(gate.fileno())
    except TimeoutError:
        raise Refused(f"it did not start within {GATE_SECONDS:g} s") from None
    room = socket.CMSG_SPACE(_CREDENTIALS.size)
    word, ancillary, _, _ = gate.recvmsg(max(len(READY), len(NO_PROCESS)), room)
    if word == NO_PROCESS:
        raise Refused("no further process can be made inside (limits.processes)")
    if word != READY:
        raise Refused("it was ended before it started")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(_CREDENTIALS.unpack(data)[0])
    raise Refused("the kernel does not say which process it is")


def is_inside(pid: int, init: int) -> bool:
    """Whether a process is one of the sandbox."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid")
    except OSError:
        return False


def further_failures(pid: int, init: int) -> list[str]:
    """Compare a process with the sandbox's first one, from outside; every difference that counts.

    The numbers are the host's. A process that cannot be looked at fails.
    """
    found = []
    try:
        for name in _NAMESPACES:
            ours, its = (os.readlink(f"/proc/{each}/ns/{name}") for each in (init, pid))
            if ours != its:
                found.append(f"the {name} namespace is {its}, not {ours}")
        if not os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat(f"/proc/{init}/root")):
            found.append("the root directory is another one")
        if _read(pid, "cgroup") != _read(init, "cgroup"):
            found.append("the control group is another one")
        found += _status_failures(_status(pid), _status(init))
    except OSError as error:
        found.append(f"it cannot be looked at: {error.strerror}")
    return found


def _status_failures(status: Mapping[str, str], first: Mapping[str, str]) -> list[str]:
    found = [
        f"{name} is {status.get(name)}, not empty"
        for name in _EMPTY_SETS
        if int(status.get(name, "1"), 16) != 0
    ]
    if status.get("NoNewPrivs") != "1":
        found.append("new privileges can be gained")
    if status.get("Seccomp") != _SECCOMP_FILTER:
        found.append("no system-call filter is in force")
    if status.get("Seccomp_filters") != first.get("Seccomp_filters"):
        found.append("the system-call filters are others")
    found += [f"{name} is another one" for name in ("Uid", "Gid") if status[name] != first[name]]
    return found


def _status(pid: int) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in _read(pid, "status").splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def _read(pid: int, what: str) -> str:
    with open(f"/proc/{pid}/{what}", encoding="utf-8", errors="replace") as file:
        return file.read()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
