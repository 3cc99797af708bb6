"""The questions of all sessions of one gateway, for people who watch it.

Lives in the process that serves the control API: a run's own, or the control process. It mirrors
what data planes report, so that a list needs no answer of a data plane that is busy (I12), and
sends everything on to the streams of events.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.control.event_feed import EventFeeds, now_ms
from keyhole.control.open_asks import OpenAsks
from keyhole.control.operation_table import ASK_VIEW, MAX_ASKS, WATCH_EVENT
from keyhole.control.shapes import FieldShape, RecordShape
from keyhole.control.values import (
    AskList,
    AskStanding,
    AskView,
    WatchEvent,
    WatchKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from keyhole.control.event_feed import EventFeed
    from keyhole.control.values import EventQuery

MAX_KEPT = 2 * MAX_ASKS
"""Questions that are kept: those that wait, and those that lapsed. A data plane that was taken over
gets no more memory here, and takes no other session's place."""

MAX_LISTED_SIZE = 4 * 1024 * 1024
"""Bytes of the questions in one list. A reader takes twice as many in one answer, and is cut off
with twice as many that it has not read: a thousand long paths in another script are more."""

_REST = 600
"""Bytes of a question beside its texts."""

HELD = "held"


class AskReport(Struct, frozen=True):
    """A data plane's message: a question is new, or was settled."""

    ask: AskView
    reason: str
    answer: str = ""
    by: int = 0
    via: str = ""


ASK_REPORT = RecordShape(
    AskReport,
    {"ask": FieldShape(ASK_VIEW, "which")}
    | {name: WATCH_EVENT.fields[name] for name in ("reason", "answer", "by", "via")},
)


class AskBoard:
    """The questions that can be answered, by session."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when a reader comes or goes."""
        self.feeds = EventFeeds(changed)
        self._asks = OpenAsks(MAX_KEPT)

    def pending(self) -> AskList:
        """All of them: those that wait first, and sessions by turns."""
        found = self._asks.listed()
        shown = _fitting(found)
        return AskList(shown, len(found) - len(shown))

    def watch(self, query: EventQuery, sessions: Iterable[tuple[str, str]]) -> EventFeed:
        """A stream that begins with the open sessions, by id and label, and the questions."""
        at = now_ms()
        first = [
            WatchEvent(WatchKind.SESSION, at, session, state="opened", label=label)
            for session, label in sessions
        ]
        first += [
            WatchEvent(WatchKind.ASK, at, ask.session, ask)
            for ask in _fitting(self._asks.listed())
            if ask.state is AskStanding.PENDING
        ]
        return self.feeds.open(query, first)

    def heard(self, report: AskReport) -> None:
        """A data plane reports a question."""
        ask, reason = report.ask, report.reason
        if reason == HELD or ask.state is AskStanding.LAPSED:
            kept = self._asks.put(ask)
            if reason == HELD and not kept:
                return
        else:
            self._asks.remove(ask)
        kind = WatchKind.ASK if reason == HELD else WatchKind.SETTLED
        self.feeds.publish(
            WatchEvent(
                kind, now_ms(), ask.session, ask, reason, report.answer, report.by, report.via
            )
        )

    def opened(self, session: str, label: str) -> None:
        """A session has begun."""
        event = WatchEvent(WatchKind.SESSION, now_ms(), session, state="opened", label=label)
        self.feeds.publish(event)

    def closed(self, session: str, label: str) -> None:
        """A session is over: its questions are, too."""
        self._asks.close(session)
        event = WatchEvent(WatchKind.SESSION, now_ms(), session, state="closed", label=label)
        self.feeds.publish(event)


def _fitting(asks: Sequence[AskView]) -> tuple[AskView, ...]:
    """The first of them, as many as a list has room for.

    Attack: one sandbox asks so many long questions that no list can be read, and nobody can answer
    another's (I12). The first question of each session comes before all others.
    """
    size = 0
    for count, ask in enumerate(asks[:MAX_ASKS]):
        size += _REST + sum(len(json.dumps(text)) for text in (ask.path, ask.ref, ask.rule))
        if size > MAX_LISTED_SIZE:
            return tuple(asks[:count])
    return tuple(asks[:MAX_ASKS])
