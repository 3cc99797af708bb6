"""How many connections all doors together may have, so that descriptors never run out (I9)."""

from __future__ import annotations


class Slots:
    """Counts connections. A door that finds no slot looks again later: nobody has to be woken."""

    __slots__ = ("_free",)

    def __init__(self, limit: int) -> None:
        self._free = limit

    def take(self) -> bool:
        """Take a slot, if there is one."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    def free(self) -> None:
        """Give a slot back."""
        self._free += 1
