"""Tests in one pass whether any of some texts is in another, by Vectorscan.

Used by `scrub.py`, which imports this when it first searches: loading the library takes a tenth of
a run's start. It gets the beginnings of the needles and never the end of a secret; a hit is then
verified exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hyperscan

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BEGINNING = 32
"""Bytes of a text that are searched for: enough that none is found by chance. Longer ones take long
to prepare: 30 texts of 6,000 bytes took 22 ms."""


class Prefilter:
    """Some texts, ready to be searched for; by one thread at a time."""

    __slots__ = ("_database",)

    def __init__(self, texts: Iterable[bytes]) -> None:
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        beginnings = [text[:MAX_BEGINNING] for text in texts]
        self._database.compile(expressions=beginnings, literal=True)
        self._database.scratch = hyperscan.Scratch(self._database)

    def catches(self, data: bytes | memoryview) -> bool:
        """Whether the beginning of one of them is in `data`; a view is not copied."""
        try:
            self._database.scan(data, _stop)  # type: ignore[type-var] # any buffer will do
        except hyperscan.ScanTerminated:
            return True
        return False


def _stop(*_: object) -> bool:
    return True
