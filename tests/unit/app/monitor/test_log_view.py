from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.app.monitor import log_view
from keyhole.app.monitor.log_columns import LogColumns
from keyhole.app.monitor.log_view import EventFilter, LogView, LogViews
from keyhole.audit.log_directory import LogDirectory
from tests.rigs.audit.million import refusal, request, write_lines
from tests.rigs.audit.writing import NOON

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    request("/v1/first", "api.example", "api"),
    refusal("evil.example"),
    request("/v1/second", "www.api.example", "web"),
    refusal("bidi\u202e.example"),
]


def whole(views: LogViews, wanted: EventFilter) -> LogView:
    """The view when its search is over."""
    until = time.monotonic() + log_view.SEARCH_SECONDS
    while (view := views.of(wanted, until)).searching:
        pass
    return view


@pytest.fixture
def columns(tmp_path: Path) -> LogColumns:
    write_lines(tmp_path / "a.jsonl", [(NOON + at, each) for at, each in enumerate(EVENTS)])
    made = LogColumns(LogDirectory.open(tmp_path))
    made.refresh()
    return made


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [
        (EventFilter(), [0, 1, 2, 3]),
        (EventFilter(verdict="deny"), [1, 3]),
        (EventFilter(verdict="allow"), [0, 2]),
        (EventFilter(verdict="other"), []),
        (EventFilter(host="API"), [0, 2]),
        (EventFilter(host="*.api.example"), [2]),
        (EventFilter(service="web"), [2]),
        (EventFilter(kind="connect"), [1, 3]),
        (EventFilter(session="5e55"), [0, 1, 2, 3]),
        (EventFilter(session="6"), []),
        (EventFilter(since=NOON + 1, until=NOON + 3), [1, 2]),
        (EventFilter(text="SECOND"), [2]),
        (EventFilter(text="\u202e"), [3]),
        (EventFilter(text="verdict"), []),  # a member's name is in every line, and says nothing
        (EventFilter(text="no-rule", verdict="deny"), [1, 3]),
    ],
)
def test_a_view_has_the_rows_that_pass(
    columns: LogColumns, wanted: EventFilter, rows: list[int]
) -> None:
    assert list(whole(LogViews(columns), wanted).rows) == rows


def test_a_view_grows_with_the_log(columns: LogColumns, tmp_path: Path) -> None:
    views = LogViews(columns)
    denied, found = EventFilter(verdict="deny"), EventFilter(text="second")
    before = [list(whole(views, each).rows) for each in (EventFilter(), denied, found)]
    more = [(NOON + 9, refusal()), (NOON + 10, request("/second/again"))]
    write_lines(tmp_path / "b.jsonl", more)
    columns.refresh()
    after = [list(whole(views, each).rows) for each in (EventFilter(), denied, found)]
    assert after == [[*before[0], 4, 5], [*before[1], 4], [*before[2], 5]]


def test_a_search_ends_in_time_and_says_how_many_it_left_out(
    columns: LogColumns,
) -> None:
    view = LogViews(columns).of(EventFilter(text="second"), time.monotonic() - 1)
    assert (list(view.rows), view.unsearched) == ([], 4)


def test_a_search_reads_lines_across_the_edge_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "WINDOW", 700)
    write_lines(tmp_path / "a.jsonl", [(NOON + n, request(f"/item/{n}/")) for n in range(50)])
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    assert list(whole(LogViews(columns), EventFilter(text="/item/")).rows) == list(range(50))


def test_a_search_of_alternating_files_reads_each_byte_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of sessions that ran at the same time alternate: one read for each would take hours."""
    window, count = 4000, 200
    monkeypatch.setattr(log_view, "WINDOW", window)
    names = ("a.jsonl", "b.jsonl", "c.jsonl")
    for at, name in enumerate(names):
        lines = [(NOON + 3 * n + at, request(f"/item/{n}/")) for n in range(count)]
        write_lines(tmp_path / name, lines)
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    files = [columns.place(row)[0] for row in range(6)]
    assert files[:3] == files[3:]
    assert len(set(files)) == 3
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, length: int, offset: int) -> bytes:
        reads.append(length)
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", counted)
    view = whole(LogViews(columns), EventFilter(text="/item/"))
    assert list(view.rows) == list(range(3 * count))
    size = sum((tmp_path / name).stat().st_size for name in names)
    assert len(reads) < 1.5 * size / window + len(names)
    monkeypatch.setattr(log_view, "MAX_WINDOWS", 1)  # control: as slow as one window is
    reads.clear()
    assert len(whole(LogViews(columns), EventFilter(text="/item/")).rows) == 3 * count
    assert len(reads) == 3 * count


def test_a_search_that_has_no_more_time_reads_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found until then stays; the rest is counted."""
    monkeypatch.setattr(log_view, "WINDOW", 2000)
    write_lines(tmp_path / "a.jsonl", [(NOON + n, request(f"/item/{n}/")) for n in range(50)])
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    times = iter([0.0, 0.0, 0.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times, 10.0))
    view = LogViews(columns).of(EventFilter(text="/item/"), 5.0)
    assert 0 < len(view.rows) < 20
    assert view.unsearched == 50 - len(view.rows)


def test_few_views_are_kept(columns: LogColumns) -> None:
    views = LogViews(columns)
    kept = [whole(views, EventFilter(text=str(number))) for number in range(log_view.MAX_VIEWS + 1)]
    assert whole(views, kept[-1].wanted) is kept[-1]
    assert whole(views, kept[0].wanted) is not kept[0]
