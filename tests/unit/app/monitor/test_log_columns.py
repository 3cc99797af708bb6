from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.monitor import log_columns
from keyhole.app.monitor.log_columns import LogColumns
from keyhole.audit.log_directory import LogDirectory
from tests.rigs.audit.million import closed, refusal, request, write_lines
from tests.rigs.audit.writing import NOON

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_events_of_files_that_overlap_are_in_the_order_of_time(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [(NOON, request("/0")), (NOON + 2, request("/2"))])
    write_lines(tmp_path / "b.jsonl", [(NOON + 1, refusal()), (NOON + 3, closed(10, 20))])
    columns = LogColumns(LogDirectory.open(tmp_path))
    assert columns.refresh() == 4
    records = [columns.record(row) for row in range(4)]
    assert [r.at - NOON for r in records if r] == [0, 1, 2, 3]
    assert list(columns.denied) == [0, 1, 0, 0]
    assert [columns.services.texts[each] for each in columns.service] == ["api", "", "api", "api"]
    assert (list(columns.up), list(columns.down)) == ([0, 0, 0, 10], [0, 0, 0, 20])


def test_a_refresh_adds_what_was_written_and_keeps_the_numbers_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_lines(file, [(NOON, request("/0"))])
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    write_lines(file, [(NOON + 1, request("/1"))], mode="ab")
    with file.open("ab") as out:
        out.write(b'{"seq":2,"ts":"torn')
    write_lines(tmp_path / "b.jsonl", [(NOON + 2, request("/2"))])
    assert columns.refresh() == columns.refresh() == 3
    paths = [record.text("path") for row in range(3) if (record := columns.record(row))]
    assert paths == ["/0", "/1", "/2"]


def test_lines_that_are_no_events_are_counted_and_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_lines(file, [(NOON, request())])
    deep = b'{"details":' + b"[" * 5000
    file.write_bytes(file.read_bytes() + b"no event\n[]\n" + deep + b"\n\xff\n")
    columns = LogColumns(LogDirectory.open(tmp_path))
    assert (columns.refresh(), columns.unreadable) == (1, 4)


def test_a_line_without_an_end_delays_none_after_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"x" * (log_columns.PIECE + 7) + b"\n")
    write_lines(file, [(NOON, request())], mode="ab")
    columns = LogColumns(LogDirectory.open(tmp_path))
    assert columns.refresh() == 1


def test_a_file_that_was_removed_leaves_rows_without_events(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_lines(file, [(NOON, request())])
    columns = LogColumns(LogDirectory.open(tmp_path))
    columns.refresh()
    file.unlink()
    assert columns.refresh() == 1
    assert columns.record(0) is None


def test_rows_and_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: a sandbox asks for any number of names."""
    monkeypatch.setattr(log_columns, "MAX_NAMES", 3)
    hosts = [f"h{number}.example" for number in range(10)]
    write_lines(tmp_path / "old.jsonl", [(NOON - 9, request("/old"))] * 20)
    write_lines(tmp_path / "z.jsonl", [(NOON, refusal(each)) for each in hosts])
    columns = LogColumns(LogDirectory.open(tmp_path), most=8)
    columns.refresh()
    assert columns.partial
    assert len(columns) == 10
    assert columns.hosts.texts == ["", *hosts[:2]]
    write_lines(tmp_path / "zz.jsonl", [(NOON + 1, refusal())])
    columns.refresh()
    columns.refresh()
    assert columns.generation > 0
    assert len(columns) <= 11
