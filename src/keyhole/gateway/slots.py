"""Limits the connections of all doors together, so that descriptors never run out (I9)."""

from __future__ import annotations

KEPT = 8
"""One slot in this many is reserved for doors with few connections, so that one sandbox, or a few,
cannot take all of them (I12)."""

FEW = 16
"""Connections up to which a door may use the reserved slots."""


class Slots:
    """Counts connections. A door that finds no slot tries again later, so that none has to be
    woken."""

    __slots__ = ("_free", "_kept")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._kept = limit // KEPT

    def take(self, held: int) -> bool:
        """Take a slot, if there is one for a door that holds this many."""
        if self._free <= (0 if held < FEW else self._kept):
            return False
        self._free -= 1
        return True

    def free(self) -> None:
        """Give a slot back."""
        self._free += 1
