"""Which notices are new to a person."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyhole.app.run.said_notices import MAX_KNOWN, SaidNotices

PROJECT = Path("/home/you/widgets")


def test_each_is_new_once_in_a_project(tmp_path: Path) -> None:
    said = SaidNotices(tmp_path / "notices", PROJECT)
    assert said.take_new(["a", "b", "a"]) == ["a", "b"]
    assert SaidNotices(tmp_path / "notices", PROJECT).take_new(["b", "c"]) == ["c"]
    assert SaidNotices(tmp_path / "notices", PROJECT / "x").take_new(["a"]) == ["a"]
    assert said.take_new([]) == []
    text = "".join(file.read_text() for file in (tmp_path / "notices").iterdir())
    assert '"a"' not in text


def test_as_many_are_remembered_as_fit(tmp_path: Path) -> None:
    """I9."""
    said = SaidNotices(tmp_path, PROJECT)
    said.take_new([f"line {number}" for number in range(2 * MAX_KNOWN)])
    assert said.take_new(["line 0", f"line {2 * MAX_KNOWN - 1}"]) == ["line 0"]


@pytest.mark.parametrize("content", ["", "no json", "{}", "[1, [2]]", "[" * 100_000])
def test_a_file_that_says_nothing_hides_nothing(tmp_path: Path, content: str) -> None:
    SaidNotices(tmp_path, PROJECT).take_new(["a"])
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert SaidNotices(tmp_path, PROJECT).take_new(["a"]) == ["a"]


def test_where_nothing_can_be_stored_it_is_said_each_time(tmp_path: Path) -> None:
    place = tmp_path / "a file"
    place.touch()
    said = SaidNotices(place, PROJECT)
    assert said.take_new(["a"]) == said.take_new(["a"]) == ["a"]
