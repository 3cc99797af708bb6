"""The socket on which exactly one holder registers and hands over its door.

Each holder has one, mounted in that holder alone, that accepts one connection. The kernel
identifies the peer: its process, held by a pidfd, is in the control group of the container that we
made, and the engine reports that it is the first process of that container (I5).

A holder is started before the event loop is imported, which takes a while.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import SetupFailed
from keyhole.sandbox.handover import DoorReader
from keyhole.system.processes import has_ended

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine

_SO_PEERPIDFD = 77
"""From <asm-generic/socket.h>, Linux 6.5."""
_SO_NETNS_COOKIE = 71

NAME = "registration.sock"


class DoorRegistration:
    """One socket, for one holder."""

    def __init__(self, directory: Path) -> None:
        """`directory` is ours alone, or readable by the holder, which cannot write in it."""
        self.path = directory / NAME
        self.path.unlink(missing_ok=True)  # left by a run that was killed
        self._listener = socket.socket(socket.AF_UNIX)
        # A short name: the path of a socket has at most 107 bytes.
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{place}/{self.path.name}")
        finally:
            os.close(place)
        # The holder is another user, which sees this file and not the directory.
        os.chmod(self.path, 0o666)  # noqa: S103 - in a directory that is ours alone
        self._listener.listen(1)
        self._listener.setblocking(False)

    async def accept(self) -> socket.socket:
        """Accept the first peer that connects; after that no other can."""
        import asyncio

        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        finally:
            self.close()
        return connection

    def close(self) -> None:
        """Close the socket without accepting a peer."""
        self._listener.close()
        self.path.unlink(missing_ok=True)


class RegisteredDoor(Struct, frozen=True):
    """The sockets and the network that a holder hands over."""

    door: list[socket.socket]
    links: socket.socket
    """The socket on which the kernel reports new interfaces."""
    namespace: str
    """The name of its network namespace."""


async def receive_door(control: socket.socket) -> RegisteredDoor:
    """Receive the door over this connection."""
    import asyncio

    loop = asyncio.get_running_loop()
    reader = DoorReader()
    control.setblocking(False)
    while not reader.complete:
        ready = asyncio.Event()
        loop.add_reader(control, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(control)
        reader.read(control)
    handed = reader.sockets()
    try:
        _refuse_strange(handed)
    except BaseException:
        for each in handed:
            each.close()
        raise
    return RegisteredDoor(handed[:-1], handed[-1], reader.namespace)


def cookie_of(sock: socket.socket) -> bytes:
    """The cookie of its network namespace, which the kernel never reuses before the next boot."""
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)


def refuse_other_network(control: socket.socket, door: list[socket.socket]) -> None:
    """Raise SetupFailed unless the peer is in the network of the door.

    The kernel makes our end of a connection in the namespace of the socket that connected to it.
    Nothing else is known of a peer in another process namespace (I5).
    """
    if len({cookie_of(each) for each in (control, *door)}) != 1:
        raise SetupFailed("who registered a door is not in the network that it leads to")


def _refuse_strange(handed: list[socket.socket]) -> None:
    """Refuse sockets unless all are of one namespace that is not ours, and only the last is
    netlink's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        cookies = [cookie_of(each) for each in (own, *handed)]
    of_netlink = [s.family == socket.AF_NETLINK for s in handed]
    whole = len(handed) > 2 and of_netlink == [*[False] * (len(handed) - 1), True]
    if not whole or len(set(cookies[1:])) != 1 or cookies[0] == cookies[1]:
        raise SetupFailed("what the holder handed over is no door of a network of its own")


def check_peer(
    control: socket.socket, engine: Engine, container: str, *, grouped: bool = True
) -> None:
    """Raise SetupFailed unless the process behind this connection is the first of that container.

    A rootless engine may be unable to make control groups, so none is required there (`grouped`);
    the group of another container is refused all the same.
    """
    pidfd = _peer(control)
    try:
        pid = _pid_of(pidfd)
        groups = _groups_of(pid)
        # We may be in a container ourselves; a process without a group of its own is then in ours.
        member = container in groups or not (grouped or groups - _groups_of(os.getpid()))
        state = engine.state(container)
        lives = not has_ended(pidfd)  # so its number still is this process's
    finally:
        os.close(pidfd)
    if not (member and lives and state.running and state.id == container and state.pid == pid):
        raise SetupFailed("who registered a door is not the holder that was started")


def _peer(control: socket.socket) -> int:
    try:
        data = control.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("=i", data)[0])
    except OSError:
        # Before Linux 6.5. The number may belong to another process by now; then it counts that the
        # engine names the same number for a running container.
        data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = int(struct.unpack("=3i", data)[0])
        try:
            return os.pidfd_open(pid)
        except OSError:
            raise SetupFailed("who registered a door has ended") from None


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        found = re.search(r"^Pid:\s+(-?\d+)$", file.read(), re.MULTILINE)
    return int(found[1]) if found else -1


def _groups_of(pid: int) -> frozenset[str]:
    """The ids in the names of the process's control groups: `/docker/ID`, `libpod-ID.scope`."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return frozenset(re.findall(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", file.read()))
    except OSError:
        return frozenset()
