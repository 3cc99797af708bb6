"""Interleaved rounds: each subject is measured in turn, again and again, and medians compared."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Row:
    """A measured ratio against its bounds; without one it only informs.

    A row with a bound and no ratio was not measured, which is neither kept nor broken.
    """

    name: str
    figure: str
    ratio: float | None = None
    bound: float | None = None
    at_least: float | None = None

    @property
    def kept(self) -> bool:
        """Whether no bound is broken; see `measured`."""
        if self.ratio is None:
            return True
        over = self.bound is not None and self.ratio > self.bound
        under = self.at_least is not None and self.ratio < self.at_least
        return not (over or under)

    @property
    def measured(self) -> bool:
        """Whether there is a ratio to hold against the bounds."""
        return self.ratio is not None or (self.bound is None and self.at_least is None)

    @property
    def bounds(self) -> str:
        """The bounds in words; empty for a row that only informs."""
        words = (("at least", self.at_least), ("at most", self.bound))
        return ", ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)

    def __str__(self) -> str:
        text = f"{self.name:<58} {self.figure}"
        if self.ratio is not None:
            text += f"  ratio {self.ratio:.2f}"
        if self.bounds:
            judged = "kept" if self.kept else "NOT KEPT"
            text += f" ({self.bounds}: {judged if self.measured else 'NOT MEASURED'})"
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
    """Run the subjects in turns, and give the median of each.

    In another order each time: who runs after the one that leaves a core idle, or its caches to
    others, would always pay for that.
    """
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    order, chance = list(subjects), random.Random(7)  # noqa: S311 - the same in every run
    for _ in range(rounds):
        chance.shuffle(order)
        for name in order:
            taken[name].append(subjects[name]())
    return {name: sample(values) for name, values in taken.items()}


def sample(values: list[float]) -> Sample:
    """The median of what was measured, and its spread."""
    low, middle, high = statistics.quantiles(values, n=4)
    return Sample(middle, (high - low) / 2)
