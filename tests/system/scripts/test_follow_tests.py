"""A test that moved is followed; one that is gone is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.follow_tests import followed, places

if TYPE_CHECKING:
    from pathlib import Path


def test_a_test_that_moved_is_followed_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").write_text("def test_one(): ...\ndef help(): ...\n")
    (tmp_path / "tests" / "unit" / "test_b.py").write_text("def test_two(): ...\n")
    page = "`tests/old.py::test_one` `tests/unit/test_b.py::test_two` `tests/old.py::test_gone`"
    text, lost = followed(page, places(tmp_path))
    assert text.split()[:2] == [
        "`tests/unit/test_a.py::test_one`",
        "`tests/unit/test_b.py::test_two`",
    ]
    assert lost == ["tests/old.py::test_gone"]
