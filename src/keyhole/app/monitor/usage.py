"""Usage over time, summed from the columns of the log: requests, denials and bytes."""

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

SPANS = {"hour": 3600, "day": 86400, "week": 7 * 86400}
"""Seconds of a chart, by name."""


class UsageSeries(Struct):
    """The sums of one service or session, a number for each step."""

    name: str
    requests: list[int]
    denied: list[int]
    bytes: list[int]

    @property
    def weight(self) -> int:
        """By which the largest are found."""
        return sum(self.requests) + sum(self.denied)


class UsageChart(Struct, frozen=True):
    """The series of a span of time; `start` is that of its first step."""

    start: float
    step: float
    series: list[UsageSeries]


def sum_usage(columns: LogColumns, by: str, span: str, now: float) -> UsageChart:
    """The usage of the last hour, day or week, by `service` or by `session`."""
    length = SPANS[span]
    step, start = length / STEPS, now - length
    by_session = by == "session"
    names = columns.sessions if by_session else columns.services
    keys = columns.session if by_session else columns.service
    found: dict[int, UsageSeries] = {}
    request = columns.kinds.number("request")
    for row in range(bisect_left(columns.at, start), len(columns)):
        place = int((columns.at[row] - start) / step)
        if not 0 <= place < STEPS:
            continue  # a clock that was set back
        series = found.get(keys[row])
        if series is None:
            name = names.texts[keys[row]] or UNNAMED
            series = found[keys[row]] = UsageSeries(name, [0] * STEPS, [0] * STEPS, [0] * STEPS)
        if columns.denied[row]:
            series.denied[place] += columns.times[row]
        elif columns.kind[row] == request:
            series.requests[place] += columns.times[row]
        series.bytes[place] += columns.up[row] + columns.down[row]
    return UsageChart(start, step, _largest(list(found.values())))


def _largest(found: list[UsageSeries]) -> list[UsageSeries]:
    ordered = sorted(found, key=lambda each: (-each.weight, each.name))
    shown, others = ordered[:MAX_SERIES], ordered[MAX_SERIES:]
    if not others:
        return shown
    rest = UsageSeries(REST, [0] * STEPS, [0] * STEPS, [0] * STEPS)
    for each in others:
        for place in range(STEPS):
            rest.requests[place] += each.requests[place]
            rest.denied[place] += each.denied[place]
            rest.bytes[place] += each.bytes[place]
    return [*shown, rest]
