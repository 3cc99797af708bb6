"""Limits the connections of all doors together, so that descriptors never run out (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT = 8
"""One slot in this many is reserved for doors with few connections, so that one sandbox, or a few,
cannot take all of them (I12)."""

FEW = 16
"""Connections up to which a door may use the reserved slots."""


class Slots:
    """Counts connections. A door that finds no slot tries again later, so that none has to be
    woken."""

    __slots__ = ("_held", "_kept", "_lack", "_lacking", "_limit")

    def __init__(self, limit: int, lack: Callable[[], None] | None = None) -> None:
        """`lack` is called when there is none."""
        self._limit = limit
        self._held = 0
        self._kept = limit // KEPT
        self._lack = lack
        self._lacking = False

    def take(self, held: int) -> bool:
        """Take a slot, if there is one for a door that holds this many."""
        if self._limit - self._held <= (0 if held < FEW else self._kept):
            self._lacking = True
            if self._lack is not None:
                self._lack()
            return False
        self._held += 1
        return True

    def free(self) -> None:
        """Give a slot back."""
        self._held -= 1

    def resize(self, limit: int) -> None:
        """Continue with another number; those that are held beyond it stay until they are given
        back."""
        self._limit, self._kept = limit, limit // KEPT

    def look(self) -> tuple[int, bool]:
        """The slots that are held, and whether one lacked since the last look."""
        lacking, self._lacking = self._lacking, False
        return self._held, lacking
