"""The log for a page or a screen: pages of events, what is new, and usage. Safe to call in threads.

Texts of events come from sandboxes. Their hidden characters are written out here, so that no text
reorders a line or imitates another. The page or screen still escapes them for its medium.
"""

from __future__ import annotations

import shlex
import threading
import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from keyhole.app.monitor.log_columns import LogColumns
from keyhole.app.monitor.log_view import SEARCH_SECONDS, EventFilter, LogViews
from keyhole.app.monitor.usage import UsageChart, sum_usage
from keyhole.audit.log_directory import LogDirectory
from keyhole.model.event import EventKind
from keyhole.model.reasons import info_of, sentence_of
from keyhole.model.text import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from keyhole.app.monitor.log_view import LogView
    from keyhole.audit.log_line import LogRecord

MAX_PAGE = 200
"""Events of one page."""

MAX_FRESH = 50
"""New events that are shown as they come; of more, the newest."""

TURN_SECONDS = 0.001
"""Seconds between two slices of a search: without a pause, other threads would never get the
lock."""

MAX_CHOICES = 200
"""Names that a filter offers."""


class LogPage(Struct, frozen=True):
    """A part of a view. Rows are counted from the oldest, so their numbers keep their meaning."""

    generation: int
    total: int
    first: int
    events: list[dict[str, Any]]
    unsearched: int = 0
    unreadable: int = 0
    partial: bool = False


class FreshEvents(Struct, frozen=True):
    """What was added since a row."""

    generation: int
    total: int
    events: list[dict[str, Any]]


class LogStore:
    """The audit log of one directory, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._columns: LogColumns | None = None
        self._views: LogViews | None = None

    def refresh(self) -> int:
        """Read what was written since; returns the number of events."""
        with self._lock:
            columns = self._open()
            return 0 if columns is None else columns.refresh()

    def fresh(self, after: int) -> FreshEvents:
        """The events from a row on, of many the newest."""
        with self._lock:
            columns = self._open()
            if columns is None:
                return FreshEvents(0, 0, [])
            total = len(columns)
            rows = range(max(after, total - MAX_FRESH, 0), total)
            return FreshEvents(columns.generation, total, self._events(columns, rows))

    def page(self, wanted: EventFilter, first: int | None, count: int) -> LogPage:
        """`count` events from position `first` of the filter's view on; the newest for None.

        A search for a text may take seconds. It releases the lock between its slices, so that live
        events are not delayed.
        """
        until = time.monotonic() + SEARCH_SECONDS
        while True:
            with self._lock:
                columns = self._open()
                if columns is None or self._views is None:
                    return LogPage(0, 0, 0, [])
                view = self._views.of(wanted, until)
                if not view.searching:
                    return self._page(columns, view, first, count)
            time.sleep(TURN_SECONDS)

    def _page(self, columns: LogColumns, view: LogView, first: int | None, count: int) -> LogPage:
        total = len(view.rows)
        count = min(max(count, 1), MAX_PAGE)
        first = max(0, total - count) if first is None else min(max(first, 0), total)
        events = self._events(columns, view.rows[first : first + count])
        return LogPage(
            columns.generation, total, first, events,
            view.unsearched, columns.unreadable, columns.partial,
        )  # fmt: skip

    def usage(self, by: str, span: str) -> UsageChart:
        """Usage of the last hour, day or week, by service or session."""
        with self._lock:
            columns = self._open()
            if columns is None:
                return UsageChart(time.time(), 1.0, [])
            return sum_usage(columns, by, span, time.time())

    def choices(self) -> dict[str, list[str]]:
        """Names of the log for the filters: services, kinds and sessions, the newest last."""
        with self._lock:
            columns = self._open()
            if columns is None:
                return {"services": [], "kinds": [], "sessions": []}
            return {
                "services": _choices(columns.services.texts),
                "kinds": _choices(columns.kinds.texts),
                "sessions": _choices(columns.sessions.texts),
            }

    def _open(self) -> LogColumns | None:
        if self._columns is None:
            try:
                directory = LogDirectory.open(self._path)
            except FileNotFoundError:
                return None
            self._columns = LogColumns(directory)
            self._views = LogViews(self._columns)
        return self._columns

    @staticmethod
    def _events(columns: LogColumns, rows: Sequence[int]) -> list[dict[str, Any]]:
        found = []
        for row in rows:
            record = columns.record(row)
            found.append({"n": row, "gone": True} if record is None else event_view(row, record))
        return found


def event_view(row: int, record: LogRecord) -> dict[str, Any]:
    """An event as a person sees it."""
    return {
        "n": row,
        "ts": record.ts,
        "at": record.at,
        "session": visible(record.session),
        "kind": visible(record.kind),
        "verdict": "deny" if record.denied else "allow",
        "reason": visible(record.reason),
        "rule": visible(record.rule),
        "host": visible(record.host),
        "times": record.folded or 1,
        "details": {visible(name): _shown(value) for name, value in record.details.items()},
        "says": visible(sentence_of(record.reason)),
        "hint": visible(_hint(record)),
        "why": visible(why_command(record)),
    }


def why_command(record: LogRecord) -> str:
    """The command that explains such a decision by the current policy; empty if none does."""
    host, port = record.host, record.details.get("port", 443)
    method, path = record.text("method"), record.text("path")
    if not host:
        return ""
    repository, ref = record.text("repository"), record.text("ref")
    if record.kind == EventKind.REF and repository and ref:
        return shlex.join(["keyhole", "why", "git", "push", f"https://{host}/{repository}", ref])
    if method and path.startswith("/"):
        return shlex.join(["keyhole", "why", method, f"https://{host}{path}"])
    return shlex.join(["keyhole", "why", host if port == 443 else f"{host}:{port}"])


def _hint(record: LogRecord) -> str:
    hint = info_of(record.reason).hint
    for name, value in (("host", record.host), ("pattern", record.host)):
        hint = hint.replace(f"{{{name}}}", value)
    return hint.replace("{port}", str(record.details.get("port", 443))).replace("{limit}", "limit")


def _shown(value: object) -> str | int | float:
    return value if isinstance(value, int | float) else visible(str(value))


def _choices(texts: list[str]) -> list[str]:
    return [visible(text) for text in texts[-MAX_CHOICES:] if text]
