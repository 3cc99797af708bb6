"""Usage over time, summed from the columns of the log: requests, denials, bytes, tokens, money."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from keyhole.app.monitor.log_columns import LogColumns

STEPS = 60
"""Points of a chart."""

MAX_SERIES = 8
"""Services or sessions of a chart; the rest is one series."""

REST = "all others"
UNNAMED = "–"

SPANS = {"hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}
"""Seconds of a chart, by name."""

MEASURES = ("requests", "denied", "bytes", "tokens", "money")


class UsageSeries(Struct):
    """The sums of one service or session, a number for each step."""

    name: str
    requests: list[int]
    denied: list[int]
    bytes: list[int]
    tokens: list[int]
    money: list[int]
    """Billionths of a dollar."""
    unpriced: int = 0
    """Tokens of models whose price is not known: they are not in `money` unless a budget counts
    them."""

    @classmethod
    def empty(cls, name: str) -> UsageSeries:
        """A series of nothing."""
        requests, denied, transferred, tokens, money = ([0] * STEPS for _ in MEASURES)
        return cls(name, requests, denied, transferred, tokens, money)

    @property
    def weight(self) -> int:
        """By which the largest are found."""
        return sum(self.requests) + sum(self.denied)

    def add(self, other: UsageSeries) -> None:
        """Add another one's numbers."""
        for measure in MEASURES:
            own, more = getattr(self, measure), getattr(other, measure)
            own[:] = map(int.__add__, own, more)
        self.unpriced += other.unpriced


class UsageChart(Struct, frozen=True):
    """The series of a span of time; `start` is that of its first step."""

    start: float
    step: float
    series: list[UsageSeries]


def sum_usage(columns: LogColumns, by: str, span: str, now: float) -> UsageChart:
    """The usage of the last hour, day, week or month, by `service` or by `session`."""
    length = SPANS[span]
    step, start = length / STEPS, now - length
    by_session = by == "session"
    names = columns.sessions if by_session else columns.services
    keys = columns.session if by_session else columns.service
    found: dict[int, UsageSeries] = {}
    request, asked = columns.kinds.number("request"), columns.kinds.number("ask")
    for row in range(bisect_left(columns.at, start), len(columns)):
        place = int((columns.at[row] - start) / step)
        if not 0 <= place < STEPS:
            continue  # a clock that was set back
        series = found.get(keys[row])
        if series is None:
            series = UsageSeries.empty(names.texts[keys[row]] or UNNAMED)
            found[keys[row]] = series
        if columns.kind[row] == asked:
            continue  # what becomes of it is an event of its own
        if columns.denied[row]:
            series.denied[place] += columns.times[row]
        elif columns.kind[row] == request:
            series.requests[place] += columns.times[row]
        series.bytes[place] += columns.up[row] + columns.down[row]
        tokens = columns.tokens[row]
        if tokens:
            series.tokens[place] += tokens
            series.money[place] += columns.money[row]
            series.unpriced += tokens if columns.unpriced[row] else 0
    return UsageChart(start, step, _largest(list(found.values())))


def _largest(found: list[UsageSeries]) -> list[UsageSeries]:
    ordered = sorted(found, key=lambda each: (-each.weight, each.name))
    shown, others = ordered[:MAX_SERIES], ordered[MAX_SERIES:]
    if not others:
        return shown
    rest = UsageSeries.empty(REST)
    for each in others:
        rest.add(each)
    return [*shown, rest]
