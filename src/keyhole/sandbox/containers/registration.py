"""Where one holder hands over the door that it made, and nobody else can.

A socket for each holder, mounted in that holder alone, that answers one connection. Who connects is
known by the kernel: the peer's process, held by a descriptor, is in the control group of the
container that we made, and is what the engine says is that container's first process (I5).

A holder is begun before there is a loop, which takes a while to import.
"""

from __future__ import annotations

import os
import re
import select
import socket
import struct
from typing import TYPE_CHECKING

from keyhole.model.value import dataclass
from keyhole.sandbox.helper import DoorReader, SetupFailed

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.containers.engine import Engine

_SO_PEERPIDFD = 77
"""From <asm-generic/socket.h>, Linux 6.5."""
_SO_NETNS_COOKIE = 71

NAME = "registration.sock"


class Registration:
    """One socket, for one holder."""

    def __init__(self, directory: Path) -> None:
        """`directory` is ours alone, or also the holder's, who cannot write in it."""
        self.path = directory / NAME
        self.path.unlink(missing_ok=True)  # of one that was killed
        self._listener = socket.socket(socket.AF_UNIX)
        # By a short name: that of a socket has at most 107 bytes.
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{place}/{self.path.name}")
        finally:
            os.close(place)
        # The holder is another user, who sees this file and nothing of the directory.
        os.chmod(self.path, 0o666)  # noqa: S103 - in a directory that is ours alone
        self._listener.listen(1)
        self._listener.setblocking(False)

    async def accept(self) -> socket.socket:
        """Whoever connects first; nobody can after that."""
        import asyncio

        try:
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        finally:
            self.close()
        return connection

    def close(self) -> None:
        """Answer nobody."""
        self._listener.close()
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Handed:
    """What a holder hands over."""

    door: list[socket.socket]
    links: socket.socket
    """On which the kernel tells of new interfaces."""
    namespace: str
    """The name of its network."""


async def receive(control: socket.socket) -> Handed:
    """All that comes over this connection."""
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
    return Handed(handed[:-1], handed[-1], reader.namespace)


def cookie_of(sock: socket.socket) -> bytes:
    """Which network it is of: what the kernel gives to no other one until the next boot."""
    return sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)


def refuse_elsewhere(control: socket.socket, door: list[socket.socket]) -> None:
    """SetupFailed unless who registered is in the very network that the door leads to.

    The kernel makes our end of a connection in the namespace of the socket that connected to it. It
    is all that is known of a peer whose process numbers are not ours (I5).
    """
    if len({cookie_of(each) for each in (control, *door)}) != 1:
        raise SetupFailed("who registered a door is not in the network that it leads to")


def _refuse_strange(handed: list[socket.socket]) -> None:
    """The sockets are all of one namespace, and that is not ours; the last alone is netlink's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as own:
        cookies = [cookie_of(each) for each in (own, *handed)]
    of_netlink = [s.family == socket.AF_NETLINK for s in handed]
    whole = len(handed) > 2 and of_netlink == [*[False] * (len(handed) - 1), True]
    if not whole or len(set(cookies[1:])) != 1 or cookies[0] == cookies[1]:
        raise SetupFailed("what the holder handed over is no door of a network of its own")


def check_peer(
    control: socket.socket, engine: Engine, container: str, *, grouped: bool = True
) -> None:
    """SetupFailed unless the process behind this connection is that container's first.

    A rootless engine may be unable to make control groups, so of it a group is not demanded
    (`grouped`); one that is another container's is refused all the same.
    """
    pidfd = _peer(control)
    try:
        pid = _pid_of(pidfd)
        groups = _groups_of(pid)
        # We may be in a container ourselves, and what has no group of its own is then in ours.
        member = container in groups or not (grouped or groups - _groups_of(os.getpid()))
        state = engine.state(container)
        lives = not select.select([pidfd], [], [], 0)[0]  # so its number was not another's
    finally:
        os.close(pidfd)
    if not (member and lives and state.running and state.id == container and state.pid == pid):
        raise SetupFailed("who registered a door is not the holder that was started")


def _peer(control: socket.socket) -> int:
    try:
        data = control.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        return int(struct.unpack("=i", data)[0])
    except OSError:
        # Before Linux 6.5. A number could be another's by now; that the engine names the same
        # number for a container which runs is then what counts.
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
