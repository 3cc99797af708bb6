"""The values that the maker of a sandbox hands over: its door, its streams, or the reason of a
failure.

Both runtimes use it: bubblewrap's helper and a container's holder.
"""

from __future__ import annotations

import json
import socket
import struct

from msgspec import Struct

from keyhole.model.errors import SetupFailed

SETUP_SECONDS = 30.0
"""How long the whole set-up may take; it takes about 0.1 s."""
TOOK_TOO_LONG = f"the set-up took over {SETUP_SECONDS:g} s"

MAX_REPORT = 65536
_MAX_DOOR_SOCKETS = 253
"""Three sockets of the door, those of ports, and one on which the kernel reports new interfaces to
a holder. A message has no more (SCM_MAX_FD)."""


class StandardStreams(Struct, frozen=True):
    """The command's standard input, output and error."""

    stdin: int
    stdout: int
    stderr: int


class DoorReader:
    """Assembles the message that carries the door from its pieces."""

    def __init__(self) -> None:
        self._data = b""
        self._descriptors: list[int] = []

    @property
    def complete(self) -> bool:
        """Whether the message is complete."""
        data = self._data
        return len(data) >= 4 and len(data) >= 4 + int(struct.unpack("=I", data[:4])[0])

    def read(self, control: socket.socket) -> None:
        """Read one more piece. Raises SetupFailed when there is none."""
        try:
            more, descriptors, _, _ = socket.recv_fds(control, MAX_REPORT, _MAX_DOOR_SOCKETS)
        except ConnectionResetError:
            more, descriptors = b"", []  # it ended before it read the launch
        self._descriptors += descriptors
        if not more:
            raise SetupFailed("the helper ended before the sandbox was made")
        self._data += more

    @property
    def namespace(self) -> str:
        """The door's network namespace, as its maker names it."""
        return str(json.loads(self._data[4:]).get("door", ""))

    def sockets(self) -> list[socket.socket]:
        """The door's sockets. Raises SetupFailed with the helper's reason when there are none."""
        message = json.loads(self._data[4:])
        if "error" in message:
            raise SetupFailed(message["error"])
        return [socket.socket(fileno=descriptor) for descriptor in self._descriptors]
