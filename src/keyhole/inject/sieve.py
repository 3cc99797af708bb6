"""Whether any of some texts is in another, in one pass over it: by Vectorscan.

Used by `scrub.py`, which imports this when it first searches: the library takes as long to load as
a tenth of a run's start. It is told the beginnings of what is searched for, and knows nothing of
secrets; what it catches is looked at more closely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hyperscan

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BEGINNING = 32
"""Bytes of a text that are searched for: as many as are found nowhere by chance. Long texts would
take long to be prepared, 30 of 6,000 bytes 22 ms."""


class Sieve:
    """Some texts, ready to be searched for; by one thread at a time."""

    __slots__ = ("_database",)

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        beginnings = [text[:MAX_BEGINNING] for text in texts]
        self._database.compile(expressions=beginnings, literal=True)
        self._database.scratch = hyperscan.Scratch(self._database)

    def catches(self, data: bytes | memoryview) -> bool:
        """Whether the beginning of one is in there; of a view nothing is copied."""
        try:
            self._database.scan(data, _stop)  # type: ignore[type-var] # any buffer will do
        except hyperscan.ScanTerminated:
            return True
        return False


def _stop(*_: object) -> bool:
    return True
