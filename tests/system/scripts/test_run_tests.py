"""`make test` runs every test, and passes only if each of them does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts import run_tests
from scripts.run_tests import (
    LONGEST_FIRST,
    MEASURED,
    PROPERTIES,
    ROOT,
    SUMMARY,
    Ended,
    Part,
    Runner,
    parts,
)

if TYPE_CHECKING:
    from pathlib import Path

TESTS = ROOT / "tests"


def test_every_test_is_in_one_part() -> None:
    together, alone = parts(TESTS)
    files = [
        file
        for part in together
        if part.name != PROPERTIES
        for path in part.paths
        for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    # A cluster is built with Go, so its tests have a verb of their own.
    others = set((TESTS / "cluster").rglob("test_*.py"))
    assert set(files) == set(TESTS.rglob("test_*.py")) - others
    assert len(files) == len(set(files))
    assert {part.name for part in together if part.measured} == set(MEASURED)
    assert {part.name.partition("-")[0] for part in together} >= set(LONGEST_FIRST)
    assert alone is not None


def test_no_choice_of_marks_leaves_a_test_out() -> None:
    """Whatever a test is marked with, `attack` apart, one part of its folder chooses it."""
    together, alone = parts(TESTS)
    assert alone is not None
    for folder in (TESTS / "unit" / "wire", TESTS / "system" / "gateway"):
        chosen = [part.marks for part in together if folder in part.paths] + [alone.marks]
        for is_alone in (False, True):
            for drawn in (False, True):
                names = {"attack": False, "alone": is_alone, "hypothesis": drawn}
                assert [eval(marks, names) for marks in chosen].count(True) == 1  # noqa: S307


class Said:
    """In place of pytest: how each part ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: dict[str, int] = {}
        self.covered = True
        self.ran: list[str] = []
        monkeypatch.setattr(Runner, "run", lambda _, part: self.run(part))
        monkeypatch.setattr(run_tests, "covered", lambda _: self.covered)

    def run(self, part: Part) -> Ended:
        self.ran.append(part.name)
        code = self.codes.get(part.name, 0)
        names = f"{SUMMARY} ===\nFAILED a.py::test_bad - no\n" if code else ""
        return Ended(part, code, f"..\n=== {names}1 failed, 1 passed in 1s\nmore\n")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(monkeypatch)


def test_it_passes_where_all_pass_and_what_is_pure_is_covered(said: Said) -> None:
    assert run_tests.main() == 0
    assert sorted(said.ran[:-1]) == sorted(part.name for part in parts(TESTS)[0])
    assert said.ran[-1] == "alone"
    said.covered = False
    assert run_tests.main() == 1


@pytest.mark.parametrize("where", ["unit/wire", "system/gateway", PROPERTIES, "alone"])
@pytest.mark.parametrize("code", [1, 2, 5, -9])
def test_a_failure_anywhere_is_the_whole_runs_and_is_named_at_the_end(
    said: Said, capsys: pytest.CaptureFixture[str], where: str, code: int
) -> None:
    said.codes = {where: code}
    assert run_tests.main() == 1
    assert said.ran[-1] == "alone"
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last == [f"{where}: 1 failed, 1 passed in 1s", "FAILED a.py::test_bad - no"]


def test_what_pytest_says_is_read(tmp_path: Path) -> None:
    """By the real one; the control is the test that is not chosen."""
    (tmp_path / "test_a.py").write_text(
        "import pytest\n@pytest.mark.alone\ndef test_bad(): assert 1 == 2\n"
        "@pytest.mark.alone\ndef test_odd(): pytest.skip('why')\ndef test_worse(): assert 0\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_tests, "ROOT", tmp_path)
        ended = Runner(tmp_path).run(Part("a", (tmp_path / "test_a.py",), "alone"))
    assert ended.code == 1
    assert ended.result.startswith("1 failed, 1 skipped, 1 deselected")
    assert [line[:6] for line in ended.summary.splitlines()] == ["FAILED"]
    assert "1 == 2" in ended.shown()


def test_one_that_was_killed_is_shown_whole() -> None:
    """Control: of one that passed, only why tests were skipped."""
    part = Part("system/git", (), "")
    assert "Segmentation" in Ended(part, -11, "..\nSegmentation fault\n").shown()
    said = f"..s\n=== {SUMMARY} ===\nSKIPPED [1] x.py: why\n2 passed, 1 skipped in 3s\n"
    shown = Ended(part, 0, said).shown()
    assert shown == "system/git          2 passed, 1 skipped in 3s\nSKIPPED [1] x.py: why\n"
