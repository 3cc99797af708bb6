"""Streams of questions and sessions for people who watch: what waits for each reader is bounded.

The control process publishes events here; `connection.py` sends the lines of one feed to its
reader. A reader loses no question: one that does not read is cut off (I9). Decisions are not sent:
watchers read them in the audit log, so they cost the data plane nothing more.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from keyhole.control.operation_table import WATCH_EVENT
from keyhole.control.responses import stream_line
from keyhole.model.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from keyhole.control.values import EventQuery, WatchEvent

MAX_FEEDS = 32
"""Streams at a time: a person has a few windows."""

MAX_FEED = 8 * 1024 * 1024
"""Bytes at which a reader that takes nothing is cut off: all questions of several sessions."""


class EventFeed:
    """The lines that wait for one reader."""

    def __init__(self, query: EventQuery, left: Callable[[EventFeed], None]) -> None:
        """`left` is called once, when the reader has gone."""
        self.answers = query.answers == "yes"
        self.over = False
        """Whether nothing more will come."""
        self._left: Callable[[EventFeed], None] | None = left
        self._ready: Callable[[], None] = lambda: None
        self._lines: deque[bytes] = deque()
        self._size = 0

    def attach(self, ready: Callable[[], None]) -> None:
        """Call this when there is something to take."""
        self._ready = ready

    def put(self, line: bytes) -> None:
        """Add a line."""
        if self.over:
            return
        self._lines.append(line)
        self._size += len(line)
        if self._size > MAX_FEED:
            # A reader that takes nothing would hold them for as long as its connection lasts.
            self._lines.clear()
            self._size = 0
            self.close()
        self._ready()

    def take(self, most: int) -> bytes:
        """Some of the bytes that wait; empty if there are none."""
        taken: list[bytes] = []
        size = 0
        while self._lines and size < most:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        self._size -= size
        return b"".join(taken)

    def close(self) -> None:
        """The reader has gone, or nothing more will come. A second call does nothing."""
        self.over = True
        left, self._left = self._left, None
        if left is not None:
            left(self)
            self._ready()


class EventFeeds:
    """All feeds of one gateway."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """`changed` is called when a reader comes or goes."""
        self._changed = changed
        self._feeds: set[EventFeed] = set()

    @property
    def answered(self) -> bool:
        """Whether a reader is there to answer questions."""
        return any(feed.answers for feed in self._feeds)

    def open(self, query: EventQuery, first: Iterable[WatchEvent]) -> EventFeed:
        """A feed that begins with these events. Raises Refused."""
        if len(self._feeds) >= MAX_FEEDS:
            raise Refused(f"{MAX_FEEDS} streams of events are open, which is the most")
        feed = EventFeed(query, self._closed)
        for event in first:
            feed.put(write_event(event))
        if not feed.over:
            self._feeds.add(feed)
            self._changed()
        return feed

    def publish(self, event: WatchEvent) -> None:
        """Send an event to every reader."""
        if self._feeds:
            line = write_event(event)
            for feed in list(self._feeds):
                feed.put(line)

    def close(self) -> None:
        """End all of them."""
        for feed in list(self._feeds):
            feed.close()

    def _closed(self, feed: EventFeed) -> None:
        self._feeds.discard(feed)
        self._changed()


def write_event(event: WatchEvent) -> bytes:
    """An event as a line."""
    return stream_line(WATCH_EVENT.write(event, "event"))


def now_ms() -> int:
    """The wall clock, as events have it."""
    return int(time.time() * 1000)
