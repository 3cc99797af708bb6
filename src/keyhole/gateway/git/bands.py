"""Searches the side-band text of a git server for secrets that packets cut in two (I7).

`http/outbound.py` puts it between an origin's response to a fetch or a push and the scan of its
bytes. A client joins the packets of a band, so a secret that a packet's head cuts would be whole
again inside. The bytes pass unchanged; a match ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.decision import Reason
from keyhole.model.errors import Malformed, ResponseUnfit
from keyhole.wire.pkt_line import Marker, PacketReader

if TYPE_CHECKING:
    from keyhole.gateway.git.responses import BodyRewriter
    from keyhole.inject.scrub import Needles

KEPT = 4096
"""Bytes at the end of a band that are searched again with the next ones; a secret may have as
many."""

REPORT, PROGRESS, FATAL = 1, 2, 3


class BandWatch:
    """Searches one answer. Band 1 is searched where it is a report, and not where it is a pack."""

    __slots__ = ("_inner", "_joined", "_lost", "_needles", "_packets", "_watched")

    def __init__(self, needles: Needles, inner: BodyRewriter | None = None) -> None:
        """`inner` gets the response to a push."""
        self._needles = needles
        self._inner = inner
        self._watched = (PROGRESS, FATAL) if inner is None else (REPORT, PROGRESS, FATAL)
        self._packets = PacketReader()
        self._joined: dict[int, bytes] = {}
        self._lost = False

    def feed(self, data: bytes) -> bytes:
        """Returns the same bytes. Raises ResponseUnfit."""
        if self._inner is not None:
            self._inner.feed(data)
        if not self._needles:
            # A later reader does not know where a packet begins.
            self._lost = True
        if not self._lost:
            try:
                packets = self._packets.feed(data)
            except Malformed:
                # These are not packets, so no client joins them.
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
        """Return nothing: no byte was held back."""
        return self._inner.end() if self._inner is not None else b""

    def _look(self, band: int, texts: list[bytes]) -> None:
        """Search all packets of one read together: it may hold 40,000 of them (I12)."""
        before, needles = self._joined.get(band, b""), self._needles
        joined = before + b"".join(texts)
        if needles.found_in(joined):
            # A secret within one packet is replaced by the scan that follows.
            joined = before + b"".join(map(needles.replace, texts))
            if needles.found_in(joined):
                raise ResponseUnfit(Reason.SECRET_REFLECTED)
        self._joined[band] = joined[-max(KEPT, needles.reach) :]
