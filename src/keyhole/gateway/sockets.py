"""Cuts a connection."""

from __future__ import annotations

import socket
import struct

_RESET = struct.pack("ii", 1, 0)


def reset(sock: socket.socket) -> None:
    """Make the coming close a reset: a cut stream must not look like a finished one."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    except OSError:
        return  # already closed
