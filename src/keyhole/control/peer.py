"""Identifies the process at the other end of the control socket, and decides whether to answer it.

Called by `server.py` before a byte is read. Answered are processes of the gateway's own user whose
socket was created in the gateway's own network namespace. Root is not answered, unless the gateway
runs as root: a root service that another user can make connect somewhere must not act for this
user, and root can become the user first. The namespace keeps out sandboxes, which run as the same
user: even if the socket were bound into one, the kernel would show where the connection comes from
(I2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

from msgspec import Struct

from keyhole.control.received_door import SO_NETNS_COOKIE
from keyhole.system.processes import has_ended, started_ticks

SO_PEERPIDFD = 77
"""From <asm-generic/socket.h>, Linux 6.5: a pidfd of the process that connected."""

_UCRED = struct.Struct("=iII")


_ENDED = "a process that has ended"


class RefusedPeer(Struct, frozen=True):
    """A peer that is not answered, and why."""

    why: str
    pid: int
    uid: int


class OwnIdentity(Struct, frozen=True):
    """The gateway's own user and network namespace."""

    uid: int
    namespace: bytes


class Peer(Struct, frozen=True, eq=False):
    """The process that connected; `pidfd` identifies it even if its number is reused."""

    pid: int
    uid: int
    gid: int
    started: int
    pidfd: int
    """Closed with the connection; `watch` returns one to keep."""

    @property
    def process(self) -> tuple[int, int]:
        """Its number and start, which no two processes have in common."""
        return self.pid, self.started

    def watch(self) -> int:
        """A pidfd that is readable when the process has ended; the caller closes it."""
        return fcntl.fcntl(self.pidfd, fcntl.F_DUPFD_CLOEXEC, 0)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self.pidfd)


def identify(sock: socket.socket, own: OwnIdentity) -> Peer | RefusedPeer:
    """The process that connected, and whether it may be answered."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    if uid != own.uid:
        return RefusedPeer("another user", pid, uid)
    # The kernel creates the accepted socket in the namespace of the socket that connected.
    if sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8) != own.namespace:
        return RefusedPeer("another network namespace", pid, uid)
    if pid <= 0:
        return RefusedPeer("a process that cannot be seen from here", pid, uid)
    try:
        pidfd = _pin(sock, pid, uid)
    except OSError:
        return RefusedPeer(_ENDED, pid, uid)
    started = started_ticks(pid)
    # If the process still lives, the facts that were read by its number are its own.
    if started is None or has_ended(pidfd):
        os.close(pidfd)
        return RefusedPeer(_ENDED, pid, uid)
    return Peer(pid, uid, gid, started, pidfd)


def _pin(sock: socket.socket, pid: int, uid: int) -> int:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
    return pin_by_number(pid, uid)


def pin_by_number(pid: int, uid: int) -> int:
    """Before Linux 6.5: the process that has the number now, if it is the same user's.

    The process that connected may have ended, and another of the same user may have its number and
    is taken for it. This decides only with whose end a session ends, not whether to answer.
    """
    pidfd = os.pidfd_open(pid)
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        os.close(pidfd)
        raise
    if owner not in (uid, 0):  # the files of a process that is not dumpable belong to root
        os.close(pidfd)
        raise ProcessLookupError(errno.ESRCH, "the process has ended")
    return pidfd
