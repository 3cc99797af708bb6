from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.monitor.log_columns import LogColumns
from keyhole.app.monitor.usage import MAX_SERIES, REST, STEPS, sum_usage
from keyhole.audit.log_directory import LogDirectory
from tests.rigs.audit.million import closed, refusal, request, used, write_lines
from tests.rigs.audit.writing import NOON

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.model.event import Event


def _columns(path: Path, events: list[tuple[float, Event]]) -> LogColumns:
    write_lines(path / "a.jsonl", events)
    made = LogColumns(LogDirectory.open(path))
    made.refresh()
    return made


def test_usage_counts_requests_denials_and_bytes_by_step(tmp_path: Path) -> None:
    events = [
        (NOON - 7200, request()),  # before the hour
        (NOON - 3600, request()),
        (NOON - 61, refusal()),
        (NOON - 1, request()),
        (NOON - 1, closed(100, 23)),
    ]
    chart = sum_usage(_columns(tmp_path, events), "service", "hour", NOON)
    api, unnamed = chart.series
    assert (api.name, unnamed.name) == ("api", "–")
    assert (api.requests[0], api.requests[-1], sum(api.requests)) == (1, 1, 2)
    assert (api.bytes[-1], sum(api.bytes)) == (123, 123)
    assert unnamed.denied[STEPS - 2] == 1


def test_small_series_are_summed_as_one(tmp_path: Path) -> None:
    events = [(NOON - 5, request(service=f"s{n}")) for n in range(MAX_SERIES + 3)]
    chart = sum_usage(_columns(tmp_path, events), "service", "day", NOON)
    assert len(chart.series) == MAX_SERIES + 1
    assert (chart.series[-1].name, sum(chart.series[-1].requests)) == (REST, 3)


def test_usage_can_be_by_session(tmp_path: Path) -> None:
    chart = sum_usage(_columns(tmp_path, [(NOON - 5, request())]), "session", "week", NOON)
    assert [each.name for each in chart.series] == ["5e55104d0123"]


def test_tokens_and_money_are_summed_and_what_has_no_price_says_so(tmp_path: Path) -> None:
    events = [
        (NOON - 3, used(1000, 5_000_000)),
        (NOON - 2, used(500, 0, known=False)),
        (NOON - 1, request()),
    ]
    (api,) = sum_usage(_columns(tmp_path, events), "service", "month", NOON).series
    assert (sum(api.tokens), sum(api.money), api.unpriced) == (1500, 5_000_000, 500)
    assert (sum(api.requests), sum(api.denied)) == (1, 0)
