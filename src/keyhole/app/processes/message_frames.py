"""Frames on a stream between two processes: the data plane and the keeper.

The data plane, which is exposed to the network, asks in JSON, and the keeper accepts only the few
requests that it knows. The keeper answers with the structs of `messages.py`.
"""

from __future__ import annotations

import struct

SIZE = struct.Struct("=I")

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of one message: a policy of 1 MiB and the roots of a host fit many times."""


def frame_message(data: bytes) -> bytes:
    """Bytes with their length before them."""
    if len(data) > MAX_FRAME:
        raise ValueError(f"a message of more than {MAX_FRAME} bytes")
    return SIZE.pack(len(data)) + data


class MessageBuffer:
    """Puts frames together from the pieces in which they come."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        """A frame has at most `most` bytes."""
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now. Raises ValueError for one that is too long."""
        self._buffer += data
        found = []
        while len(self._buffer) >= SIZE.size:
            (length,) = SIZE.unpack_from(self._buffer)
            if length > self._most:
                raise ValueError("a message is too long")
            end = SIZE.size + length
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[SIZE.size : end]))
            del self._buffer[:end]
        return found
