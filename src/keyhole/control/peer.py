"""Who is at the other end of the control socket: facts of the kernel, and who is let in.

Called by `server.py` before a byte is read. Let in are processes of the gateway's own user whose
socket was made in the gateway's own network namespace. Root is not, unless the gateway is root's: a
service of root's that another user can make connect somewhere must not speak for this user; who is
root can become the user first. The namespace keeps sandboxes out, which run as the same user: were
the socket ever bound into one, the kernel would still tell where the connection comes from (I2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct

from keyhole.control.handed import SO_NETNS_COOKIE
from keyhole.model.value import dataclass

SO_PEERPIDFD = 77
"""From <asm-generic/socket.h>, Linux 6.5: a pidfd of the process that connected."""

_UCRED = struct.Struct("=iII")
_START_FIELD = 19
"""Of what follows the name in /proc/PID/stat: when the process started, in ticks since boot."""


_ENDED = "a process that has ended"


class Stranger(Exception):
    """Somebody who has nothing to ask here, and why."""

    def __init__(self, why: str, pid: int, uid: int) -> None:
        super().__init__(why)
        self.why = why
        self.pid = pid
        self.uid = uid


@dataclass(frozen=True, slots=True)
class Own:
    """The gateway's own user and network namespace."""

    uid: int
    namespace: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """The process that connected, pinned: `pidfd` names it even when its number is used again."""

    pid: int
    uid: int
    gid: int
    started: int
    pidfd: int
    """The connection's own; `watch` gives one to keep."""

    @property
    def process(self) -> tuple[int, int]:
        """Which process it is: no two have number and start in common."""
        return self.pid, self.started

    def watch(self) -> int:
        """A pidfd that is readable when the process has ended; the caller closes it."""
        return fcntl.fcntl(self.pidfd, fcntl.F_DUPFD_CLOEXEC, 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self.pidfd)


def identify(sock: socket.socket, own: Own) -> Peer:
    """Who connected; Stranger when it is nobody to talk to."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    if uid != own.uid:
        raise Stranger("another user", pid, uid)
    # The kernel makes our end in the namespace of the socket that connected to it.
    if sock.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8) != own.namespace:
        raise Stranger("another network namespace", pid, uid)
    if pid <= 0:
        raise Stranger("a process that cannot be seen from here", pid, uid)
    try:
        pidfd = _pin(sock, pid, uid)
    except OSError:
        raise Stranger(_ENDED, pid, uid) from None
    started = started_ticks(pid)
    # What was read of its number was read of this very process, if it lives still.
    if started is None or _has_ended(pidfd):
        os.close(pidfd)
        raise Stranger(_ENDED, pid, uid)
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

    The one that connected may have ended since, and another of the user's may have its number: it
    is taken for it then. Who may ask does not hang on it, only whose end ends a session.
    """
    pidfd = os.pidfd_open(pid)
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        os.close(pidfd)
        raise
    if owner not in (uid, 0):  # the kernel gives root what must not be dumped
        os.close(pidfd)
        raise ProcessLookupError(errno.ESRCH, "the process has ended")
    return pidfd


def started_ticks(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # A process chooses its name, parentheses and spaces included: the last one ends it.
            return int(file.read(4096).rpartition(b")")[2].split()[_START_FIELD])
    except (OSError, ValueError, IndexError):
        return None


def _has_ended(pidfd: int) -> bool:
    # Not `select`, which knows no descriptor above 1023.
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
