"""Frames between a remote door and its gateway, on one connection that carries many.

Read by both ends (`app/remote/carriage.py`). A frame is a kind, the number of a stream or of a
question, and a payload of bounded length. A frame that breaks a rule ends the connection.
"""

from __future__ import annotations

import enum
import ipaddress
import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.model.errors import Malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HEAD = struct.Struct("!BIH")

MAX_PAYLOAD = 32 * 1024
"""Bytes of one frame: many streams take turns, so none should hold the connection for long."""


class FrameKind(enum.IntEnum):
    """What a frame is."""

    OPEN = 1
    """A connection that was made in the sandbox: its destination."""
    DATA = 2
    CREDIT = 3
    """So many bytes more may be sent on a stream."""
    END = 4
    """No more bytes come on a stream in this direction."""
    RESET = 5
    """A stream is over, in both directions."""
    QUESTION = 6
    """A DNS message of the sandbox."""
    ANSWER = 7
    WORD = 8
    """A message between the two processes, as JSON."""
    BEAT = 9


_EMPTY = frozenset({FrameKind.END, FrameKind.RESET, FrameKind.BEAT})
_UNNUMBERED = frozenset({FrameKind.WORD, FrameKind.BEAT})
_DESTINATIONS = frozenset({4 + 2, 16 + 2})
_CREDIT = struct.Struct("!I")
_PORT = struct.Struct("!H")


class CarriedFrame(Struct, frozen=True):
    """One frame."""

    kind: FrameKind
    number: int = 0
    payload: bytes = b""

    def written(self) -> bytes:
        """The frame's bytes."""
        return _HEAD.pack(self.kind, self.number, len(self.payload)) + self.payload

    @property
    def destination(self) -> tuple[str, int]:
        """The address and port of an OPEN."""
        return str(_address(self.payload[:-2])), _PORT.unpack(self.payload[-2:])[0]

    @property
    def credit(self) -> int:
        """The bytes of a CREDIT."""
        return int(_CREDIT.unpack(self.payload)[0])


def open_frame(number: int, address: str, port: int) -> CarriedFrame:
    """A connection to this destination."""
    packed = ipaddress.ip_address(address).packed
    return CarriedFrame(FrameKind.OPEN, number, packed + _PORT.pack(port))


def credit_frame(number: int, amount: int) -> CarriedFrame:
    """So many bytes more."""
    return CarriedFrame(FrameKind.CREDIT, number, _CREDIT.pack(amount))


class CarriedFrameReader:
    """Frames from bytes as they come. It keeps less than one frame."""

    def __init__(self) -> None:
        self._left = bytearray()

    def feed(self, data: bytes) -> Iterator[CarriedFrame]:
        """The frames that are whole now. Raises Malformed."""
        left = self._left
        left += data
        at = 0
        while len(left) - at >= _HEAD.size:
            kind, number, length = _HEAD.unpack_from(left, at)
            known = _check(kind, number, length)
            end = at + _HEAD.size + length
            if len(left) < end:
                break
            frame = CarriedFrame(known, number, bytes(left[at + _HEAD.size : end]))
            at = end
            yield frame
        del left[:at]


def _check(kind: int, number: int, length: int) -> FrameKind:
    try:
        known = FrameKind(kind)
    except ValueError:
        raise Malformed("a frame of an unknown kind") from None
    if length > MAX_PAYLOAD:
        raise Malformed("a frame is too long")
    if (number == 0) != (known in _UNNUMBERED):
        raise Malformed("a frame has a number that its kind does not have, or lacks it")
    fits = {
        FrameKind.OPEN: length in _DESTINATIONS,
        FrameKind.CREDIT: length == _CREDIT.size,
    }
    if not fits.get(known, length == 0 if known in _EMPTY else length > 0):
        raise Malformed("a frame's payload does not fit its kind")
    return known


def _address(packed: bytes) -> Address:
    return ipaddress.ip_address(packed)
