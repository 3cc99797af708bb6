"""Sockets that were born in another network namespace, for tests of doors; needs no root."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from keyhole.control.received_door import namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROGRAM = """
import array, ctypes, os, socket, sys
NEWUSER, NEWNET = 0x10000000, 0x40000000
flags = NEWNET if os.geteuid() == 0 else NEWUSER | NEWNET
if ctypes.CDLL(None, use_errno=True).unshare(flags):
    raise OSError(ctypes.get_errno(), "unshare")
out = socket.socket(fileno=int(sys.argv[1]))
made = []
for name in sys.argv[2].split(","):
    family = socket.AF_INET6 if name == "tcp6" else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM if name == "udp" else socket.SOCK_STREAM)
    sock.bind(("::" if name == "tcp6" else "0.0.0.0", 0))
    if name != "udp" and name != "deaf":
        sock.listen()
    made.append(sock)
rights = array.array("i", [each.fileno() for each in made])
out.sendmsg([b"door"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
"""


@contextlib.contextmanager
def elsewhere(*names: str) -> Iterator[list[socket.socket]]:
    """Sockets of these kinds in a namespace of their own; `deaf` is a tcp that does not listen."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            subprocess.run(
                [sys.executable, "-I", "-c", _PROGRAM, str(theirs.fileno()), ",".join(names)],
                pass_fds=[theirs.fileno()], timeout=60, check=True,
            )  # fmt: skip
        _, descriptors, _, _ = socket.recv_fds(ours, 16, len(names))
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


@contextlib.contextmanager
def here(*names: str) -> Iterator[list[socket.socket]]:
    """The same in the namespace of this process."""
    sockets = []
    for name in names:
        family = socket.AF_INET6 if name == "tcp6" else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM if name == "udp" else socket.SOCK_STREAM)
        sock.bind(("::1" if name == "tcp6" else "127.0.0.1", 0))
        if name != "udp":
            sock.listen()
        sockets.append(sock)
    try:
        yield sockets
    finally:
        for each in sockets:
            each.close()


def own_namespace() -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return namespace_of(probe)
