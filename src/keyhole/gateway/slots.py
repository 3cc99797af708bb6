"""How many connections all doors together may have, so that descriptors never run out (I9)."""

from __future__ import annotations

KEPT = 8
"""One in so many is kept for doors with few connections: one sandbox, or a few, cannot take all of
them, and shut every other out (I12)."""

FEW = 16
"""Connections of a door that may take those."""


class Slots:
    """Counts connections. A door that finds no slot looks again later: nobody has to be woken."""

    __slots__ = ("_free", "_kept")

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._kept = limit // KEPT

    def take(self, held: int) -> bool:
        """Take a slot, if there is one for a door that has so many already."""
        if self._free <= (0 if held < FEW else self._kept):
            return False
        self._free -= 1
        return True

    def free(self) -> None:
        """Give a slot back."""
        self._free += 1
