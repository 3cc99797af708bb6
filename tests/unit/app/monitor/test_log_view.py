from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.app.monitor import log_view
from keyhole.app.monitor.log_columns import LogColumns
from keyhole.app.monitor.log_view import EventFilter, LogViews
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
    assert list(LogViews(columns).of(wanted).rows) == rows


def test_a_view_grows_with_the_log(columns: LogColumns, tmp_path: Path) -> None:
    views = LogViews(columns)
    denied, found = EventFilter(verdict="deny"), EventFilter(text="second")
    before = [list(views.of(each).rows) for each in (EventFilter(), denied, found)]
    more = [(NOON + 9, refusal()), (NOON + 10, request("/second/again"))]
    write_lines(tmp_path / "b.jsonl", more)
    columns.refresh()
    after = [list(views.of(each).rows) for each in (EventFilter(), denied, found)]
    assert after == [[*before[0], 4, 5], [*before[1], 4], [*before[2], 5]]


def test_a_search_ends_in_time_and_says_how_many_it_left_out(
    columns: LogColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "SEARCH_SECONDS", -1.0)
    view = LogViews(columns).of(EventFilter(text="second"))
    assert (list(view.rows), view.unsearched) == ([], 4)


def test_a_search_reads_lines_across_the_edge_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_view, "WINDOW", 700)
    write_lines(tmp_path / "a.jsonl", [(NOON + n, request(f"/item/{n}/")) for n in range(50)])
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    assert list(LogViews(columns).of(EventFilter(text="/item/")).rows) == list(range(50))


def test_few_views_are_kept(columns: LogColumns) -> None:
    views = LogViews(columns)
    kept = [views.of(EventFilter(text=str(number))) for number in range(log_view.MAX_VIEWS + 1)]
    assert views.of(kept[-1].wanted) is kept[-1]
    assert views.of(kept[0].wanted) is not kept[0]
