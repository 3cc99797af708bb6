"""Cuts a connection, and looks whether its other end is still there."""

from __future__ import annotations

import select
import socket
import struct

_RESET = struct.pack("ii", 1, 0)
_LEFT = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


def is_there(descriptor: int) -> bool:
    """Whether the peer of a connection that is not being read has neither closed nor reset it."""
    if descriptor < 0:
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return not any(seen & _LEFT for _, seen in poll.poll(0))


def reset(sock: socket.socket) -> None:
    """Make the coming close a reset: a cut stream must not look like a finished one."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        return  # already closed
