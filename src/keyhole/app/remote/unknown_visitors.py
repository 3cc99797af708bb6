"""Counts and bounds the connections to the remote listener that have not identified themselves.

Used by `listener.py`. Everybody who reaches the port can make such connections. Attacks: they stay
silent, send a byte now and then, or make one handshake after the other. Each address has a share,
and a new connection ends the oldest one when there are too many, so that doors can still connect
(I9, I12).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Protocol

MAX_UNKNOWN = 256
"""Connections of all addresses together. A further one ends the oldest, since a door identifies
itself within a few round trips."""

MAX_UNKNOWN_OF_ADDRESS = 16

MAX_GREETED_PER_SECOND = 64
"""New connections of one address in a second. A handshake takes the listener about a millisecond,
and it passes on the bytes of all doors."""

_IPV6_SHARE = 64
"""Bits of an IPv6 address that count: one machine can have all addresses that begin with these."""


class UnknownVisitor(Protocol):
    """A connection, as far as it is counted."""

    share: str

    def abort(self) -> None:
        """End it."""


class UnknownVisitors:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[UnknownVisitor, None] = {}
        self._of_share: Counter[str] = Counter()
        self._greeted: Counter[str] = Counter()
        self._second = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def admits(self, share: str, now: float) -> bool:
        """Whether an address may have another connection now."""
        if int(now) != self._second:
            self._second = int(now)
            self._greeted.clear()
        self._greeted[share] += 1
        few = self._of_share[share] < MAX_UNKNOWN_OF_ADDRESS
        return few and self._greeted[share] <= MAX_GREETED_PER_SECOND

    def add(self, visitor: UnknownVisitor) -> None:
        """Count a connection; the oldest one makes room for it."""
        if len(self._waiting) >= MAX_UNKNOWN:
            oldest = next(iter(self._waiting))
            self.remove(oldest)
            oldest.abort()
        self._waiting[visitor] = None
        self._of_share[visitor.share] += 1

    def remove(self, visitor: UnknownVisitor) -> None:
        """It has identified itself, or has ended. May be called again."""
        if visitor not in self._waiting:
            return
        del self._waiting[visitor]
        self._of_share[visitor.share] -= 1
        if not self._of_share[visitor.share]:
            del self._of_share[visitor.share]


def share_of(address: str) -> str:
    """The address, or the network, that a share is for."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found.packed, _IPV6_SHARE), strict=False))
