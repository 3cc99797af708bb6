"""Frames on a stream between two processes: how the data plane and the keeper speak.

The data plane, which meets the network, asks in JSON, and the keeper reads no more out of it than
the few words it knows. The keeper, which may do more, answers with values (pickled): the data plane
believes it, as it believes its own code. A secret passes here, over a pair of sockets that no other
process has, and nowhere else between processes (I1).
"""

from __future__ import annotations

import io
import pickle
import struct
from types import MappingProxyType
from typing import Any

from keyhole.model.secret import Secret

SIZE = struct.Struct("=I")

MAX_FRAME = 64 * 1024 * 1024
"""Bytes of one message: a policy of 1 MiB and the roots of a host fit many times."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - as pickle has it
        if isinstance(value, Secret):
            return Secret, (value.reveal(),)
        if isinstance(value, MappingProxyType):
            return MappingProxyType, (dict(value),)
        return NotImplemented


def packed(value: object) -> bytes:
    """A value as a frame."""
    return framed(pickled(value))


def pickled(value: object) -> bytes:
    """A value as bytes, secrets included."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - whatever was packed
    """The value that the keeper packed."""
    return pickle.loads(data)  # noqa: S301 - by our own process, which may do more than we


def framed(data: bytes) -> bytes:
    """Bytes with their length before them."""
    if len(data) > MAX_FRAME:
        raise ValueError(f"a message of more than {MAX_FRAME} bytes")
    return SIZE.pack(len(data)) + data


class Frames:
    """Puts frames together from the pieces in which they come."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        """`most` bytes in one frame."""
        self._most = most
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now; ValueError for one that is too long."""
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
