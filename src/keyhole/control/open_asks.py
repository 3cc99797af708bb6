"""The questions that a list or a screen keeps, bounded, in an order in which no session hides
another's (I12).

A sandbox asks as often as its policy lets it, and what it asked can be answered for minutes after
it lapsed. So questions that wait come first, and sessions take turns: the first of each, the second
of each. When there are too many, the last in this order goes.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from keyhole.control.values import AskStanding
from keyhole.policy.asks import LATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.control.values import AskView


class OpenAsks:
    """The questions of several sessions."""

    def __init__(self, most: int, clock: Callable[[], float] = time.time) -> None:
        """`most` questions are kept. `clock` is the wall clock, in seconds."""
        self._most = most
        self._clock = clock
        self._asks: dict[tuple[str, str], AskView] = {}

    def get(self, session: str, ask: str) -> AskView | None:
        """A question by its ids."""
        return self._asks.get((session, ask))

    def put(self, ask: AskView) -> bool:
        """Keep a question, or its new state. False if there is no room for it."""
        key = (ask.session, ask.id)
        self._asks[key] = ask
        if len(self._asks) > self._most:
            kept = self.listed()[: self._most]
            self._asks = {(each.session, each.id): each for each in kept}
        return key in self._asks

    def remove(self, ask: AskView) -> None:
        """Drop a question that was settled."""
        self._asks.pop((ask.session, ask.id), None)

    def close(self, session: str) -> None:
        """Drop the questions of a session that is over."""
        for key in [each for each in self._asks if each[0] == session]:
            del self._asks[key]

    def clear(self) -> None:
        """Drop all."""
        self._asks.clear()

    def listed(self) -> list[AskView]:
        """All that can be answered; those that lapsed too long ago are dropped."""
        now = self._clock()
        for key in [key for key, ask in self._asks.items() if _is_forgotten(ask, now)]:
            del self._asks[key]
        return by_turns(self._asks.values())


def by_turns(asks: Iterable[AskView]) -> list[AskView]:
    """What waits before what lapsed; of each session the oldest, then the second oldest."""
    turns: Counter[tuple[str, AskStanding]] = Counter()
    ranked = []
    for ask in sorted(asks, key=lambda each: (each.asked, each.id)):
        turn = turns[ask.session, ask.state]
        turns[ask.session, ask.state] += 1
        lapsed = ask.state is AskStanding.LAPSED
        ranked.append(((lapsed, turn, ask.asked, ask.id, ask.session), ask))
    return [ask for _, ask in sorted(ranked, key=lambda each: each[0])]


def _is_forgotten(ask: AskView, now: float) -> bool:
    """The session drops it then; a report of that may be lost, or never sent."""
    return ask.state is AskStanding.LAPSED and now >= ask.expires + LATE_SECONDS
