"""What a git server says beside its data, looked through for secrets over its packets (I7).

Put by `inspection.py` between an origin's answer to a fetch or a push and the scan of its bytes. A
client joins the packets of a band, so a secret that is cut by a packet's head would be whole again
inside. The bytes pass as they came; a match ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.inject.encoded import Reflected
from keyhole.wire.httpfield import Malformed
from keyhole.wire.pktline import Marker, PacketReader

if TYPE_CHECKING:
    from keyhole.gateway.errand import Rewriter
    from keyhole.inject.scrub import Needles

KEPT = 4096
"""Bytes of a band that are looked at again with what follows, and as many as a secret may have."""

REPORT, PROGRESS, FATAL = 1, 2, 3


class BandWatch:
    """One answer. Band 1 is looked through where it is a report, and not where it is a pack."""

    __slots__ = ("_inner", "_joined", "_lost", "_needles", "_packets", "_watched")

    def __init__(self, needles: Needles, inner: Rewriter | None = None) -> None:
        """`inner` hears the answer to a push."""
        self._needles = needles
        self._inner = inner
        self._watched = (PROGRESS, FATAL) if inner is None else (REPORT, PROGRESS, FATAL)
        self._packets = PacketReader()
        self._joined: dict[int, bytes] = {}
        self._lost = False

    def feed(self, data: bytes) -> bytes:
        """The same bytes. Raises Reflected."""
        if self._inner is not None:
            self._inner.feed(data)
        if not self._needles:
            # Where a packet begins is not known to who comes to it later.
            self._lost = True
        if not self._lost:
            try:
                packets = self._packets.feed(data)
            except Malformed:
                # Not packets: then nobody joins them.
                self._lost = True
                return data
            texts: dict[int, list[bytes]] = {}
            for packet in packets:
                if not isinstance(packet, Marker) and packet and packet[0] in self._watched:
                    texts.setdefault(packet[0], []).append(packet[1:])
            for band, said in texts.items():
                self._look(band, said)
        return data

    def end(self) -> bytes:
        """Nothing more."""
        return self._inner.end() if self._inner is not None else b""

    def _look(self, band: int, texts: list[bytes]) -> None:
        """Search all packets of one read together: it may hold 40,000 of them (I12)."""
        before, needles = self._joined.get(band, b""), self._needles
        joined = before + b"".join(texts)
        if needles.found_in(joined):
            # What is whole in one packet is replaced by the scan that follows.
            joined = before + b"".join(map(needles.replace, texts))
            if needles.found_in(joined):
                raise Reflected
        self._joined[band] = joined[-max(KEPT, needles.reach) :]
