"""Interleaved rounds: each subject is measured in turn, again and again, and medians compared."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """A measured ratio against its bound; without a bound it only informs."""

    name: str
    figure: str
    ratio: float | None = None
    bound: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the bound holds."""
        return self.bound is None or self.ratio is None or self.ratio <= self.bound

    def __str__(self) -> str:
        text = f"{self.name:<58} {self.figure}"
        if self.ratio is not None:
            text += f"  ratio {self.ratio:.2f}"
        if self.bound is not None:
            text += f" (at most {self.bound:g}: {'kept' if self.kept else 'NOT KEPT'})"
        return text


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of one subject."""

    median: float
    spread: float

    def shown(self, unit: str, scale: float) -> str:
        """The median and the half-spread between the quartiles."""
        return f"{self.median * scale:8.2f} {unit} ± {self.spread * scale:.2f}"


def interleave(
    subjects: Mapping[str, Callable[[], float]], rounds: int = ROUNDS
) -> dict[str, Sample]:
    """Run the subjects ABAB…, and give the median of each."""
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            taken[name].append(measure())
    return {name: _sample(values) for name, values in taken.items()}


def _sample(values: list[float]) -> Sample:
    low, middle, high = statistics.quantiles(values, n=4)
    return Sample(middle, (high - low) / 2)
