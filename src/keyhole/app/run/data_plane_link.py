"""The sockets of a run's data plane: messages of the other process, and the door.

Imported before anything else of the process, so it imports little.
"""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from keyhole.app.processes.message_frames import SIZE, MessageBuffer

MAX_FDS = 253
"""Descriptors beside one message (SCM_MAX_FD): a door has three sockets and those of its ports, and
the heartbeat's pipe comes with it."""

MAX_SAID = 1000
"""Characters of one line for the person."""


class MessageLink:
    """The receiving end for messages of the other process."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._frames = MessageBuffer()
        self._descriptors: list[int] = []

    def read_one(self) -> bytes:
        """Read exactly one message, before there is a loop: the next one may hold secrets, and this
        one is handled first. This process ends when the other one has ended."""
        first, self._descriptors, _, _ = socket.recv_fds(self.sock, 1, MAX_FDS)
        (length,) = SIZE.unpack(first + self._exactly(SIZE.size - 1))
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return bytes(data)

    def read(self) -> list[bytes]:
        """The bytes that have arrived. This process ends when the other one has ended."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, 1 << 20, MAX_FDS)
        except BlockingIOError:
            return []
        except OSError:
            data, descriptors = b"", []
        if not data:
            os._exit(0)
        self._descriptors += descriptors
        return self._frames.feed(data)

    def taken(self) -> list[int]:
        """The descriptors that came with the bytes that were read."""
        taken, self._descriptors = self._descriptors, []
        return taken


class PlaneSockets(NamedTuple):
    """The sockets and messages that the process has when it begins to serve."""

    link: MessageLink
    line: socket.socket
    """For this process's own messages."""
    door: list[socket.socket]
    pulse: int
    """The pipe that it beats on."""
    inner_ports: dict[int, int]
    """The port inside, by the published port of the host."""
    later: list[bytes]
    """Messages that came before the session was open."""
