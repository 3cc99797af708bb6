"""The bench writes its results into docs/performance.md, with the machine they come from (I10)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from benchmarks import report
from benchmarks.__main__ import MEASUREMENTS
from benchmarks.rounds import Row
from scripts.make_docs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "performance.md"
MACHINE = report.Machine("2026-07-01", "A processor", 2, "Linux 6.18", "3.13.1")


def test_a_row_has_its_value_its_bound_and_whether_it_was_kept() -> None:
    rows = [
        Row("start", "   6.10 ms ± 0.20", 1.5, 2.0),
        Row("requests", "9000 /CPU-s", 0.8, at_least=1.0),
        Row("bulk", "", None, at_least=0.5),
        Row("  only informs", "1 ms"),
    ]
    made = report.block(MACHINE, [report.Section("Part", rows), report.Section("Other", ())])
    assert made.splitlines() == [
        report.BEGIN,
        "Measured on 2026-07-01: A processor, 2 cores, Linux 6.18, Python 3.13.1.",
        "",
        "### Part",
        "",
        "| measure | value | ratio | bound | kept |",
        "|---|---|---|---|---|",
        "| start | 6.10 ms ± 0.20 | 1.50 | at most 2 | yes |",
        "| requests | 9000 /CPU-s | 0.80 | at least 1 | no |",
        "| bulk | – | – | at least 0.5 | not measured |",
        "",
        "### Other",
        "",
        "Not measured in this run.",
        report.END,
    ]


def test_the_block_of_a_page_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n", "utf-8")
    report.write(file, f"{report.BEGIN}\nnew\n{report.END}")
    assert file.read_text("utf-8") == f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n"
    with pytest.raises(ValueError, match="has no"):
        report.replaced("no markers", "new")


def test_the_page_has_every_measurement_and_the_machine() -> None:
    page = PAGE.read_text("utf-8")
    results = page.partition(report.BEGIN)[2].partition(report.END)[0]
    assert re.findall(r"^### (.+)$", results, re.MULTILINE) == [title for title, _ in MEASUREMENTS]
    assert re.search(
        r"^Measured on \d{4}-\d\d-\d\d: .+, \d+ cores, Linux .+, Python 3\.", results[1:]
    )
    rows = re.findall(r"^\| .+ \| .+ \| .+ \| at (?:least|most) .+ \| (.+) \|$", results, re.M)
    assert rows
    assert set(rows) <= {"yes", "no", "not measured"}
