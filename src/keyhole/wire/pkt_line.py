"""Packets of the git protocol: four hex digits of length, then data (gitprotocol-common).

Called by the readers of pushes, advertisements and fetches beside it. Only one
spelling of each length is accepted; the content of packets is not read here.
"""

from __future__ import annotations

import enum
import re

from keyhole.model.errors import Malformed

MAX_PACKET = 65520
"""Bytes of a packet with its length, as in git; a longer one is an error there too."""

MAX_DATA = MAX_PACKET - 4

FLUSH = b"0000"
DELIM = b"0001"

# `int` alone would take b"+01f", b" 01f", b"0x1f" and b"1_f0"; git takes upper case too.
_LENGTH = re.compile(rb"[0-9a-f]{4}")


class Marker(enum.Enum):
    """The packets without content, by their length field."""

    FLUSH = 0
    DELIM = 1
    RESPONSE_END = 2


Packet = bytes | Marker

_MARKERS = {marker.value: marker for marker in Marker}


def encode(data: bytes) -> bytes:
    """One packet with this data."""
    if len(data) > MAX_DATA:
        # A rewritten packet may be longer than the original by one LF.
        raise Malformed(f"a packet holds at most {MAX_DATA} bytes")
    return b"%04x%b" % (len(data) + 4, data)


def chomp(line: bytes) -> bytes:
    """A packet's text without the one LF that may end it, as git reads it."""
    return line[:-1] if line[-1:] == b"\n" else line


def read_packets(body: bytes, most: int | None = None) -> list[Packet]:
    """All packets of a body that is complete, of which there are at most so many."""
    reader = PacketReader()
    reader.add(body)
    packets: list[Packet] = []
    while (packet := reader.take()) is not None:
        if len(packets) == most:
            raise Malformed(f"a body has at most {most} packets")
        packets.append(packet)
    if reader.held:
        raise Malformed("the last packet is cut")
    return packets


class PacketReader:
    """Cuts a stream into packets. Holds bytes that were not taken yet."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def held(self) -> bytes:
        """The bytes that were added and are not part of a taken packet."""
        return bytes(self._buffer)

    def add(self, data: bytes) -> None:
        """Append bytes without reading them: the bytes after the last packet may not be packets."""
        self._buffer += data

    def take(self) -> Packet | None:
        """Remove the first packet, when all of it is there."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        if _LENGTH.match(buffer) is None:
            raise Malformed("a packet's length is not four digits of lower-case hex")
        length = int(buffer[:4], 16)
        if length < 4:
            marker = _MARKERS.get(length)
            if marker is None:
                raise Malformed("a packet has the length 3")
            del buffer[:4]
            return marker
        if length > MAX_PACKET:
            raise Malformed(f"a packet has at most {MAX_PACKET} bytes")
        if len(buffer) < length:
            return None
        data = bytes(buffer[4:length])
        del buffer[:length]
        return data

    def feed(self, data: bytes) -> list[Packet]:
        """Take the next bytes; returns the packets that are complete."""
        self.add(data)
        packets: list[Packet] = []
        while (packet := self.take()) is not None:
            packets.append(packet)
        return packets
