"""`make lint` refuses a test that stands where the plan of tests/ has no place for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.check_tests import ROOT, misplaced

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One module and its unit test, one system test and one rig."""
    for name in (
        "src/keyhole/policy/__init__.py", "src/keyhole/policy/forge.py",
        "tests/conftest.py", "tests/unit/policy/conftest.py", "tests/unit/policy/test_forge.py",
        "tests/unit/policy/test_forge_api.py", "tests/system/git/test_server.py",
        "tests/rigs/git/server.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from tests.rigs.policies import policy\n")
    return tmp_path


def test_this_repository_and_a_small_one_are_as_planned(tree: Path) -> None:
    assert list(misplaced(ROOT)) == []
    assert list(misplaced(tree)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tests/unit/policy/test_gone.py", "", "has no module gone.py"),
        ("tests/unit/police/test_forge.py", "", "there is no package"),
        ("tests/unit/test_forge.py", "", "in the folder of its room"),
        ("tests/unit/policy/making.py", "", "what tests share is in tests/rigs"),
        ("tests/system/test_server.py", "", "in the folder of its area"),
        ("tests/old/test_forge.py", "", "tests/ has cluster, rigs, system, unit"),
        ("tests/rigs/git/test_server.py", "", "a rig has no tests in it"),
        ("tests/unit/policy/test_forge.py", "from tests.rigs.git.server import X", "a system test"),
        ("tests/unit/policy/test_forge.py", "from tests.rigs.git import server", "a system test"),
        ("tests/unit/policy/test_forge.py", "from tests.system.git import x", "a system test"),
    ],
)
def test_what_is_out_of_place_is_named(tree: Path, name: str, text: str, said: str) -> None:
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_text(text)
    (line,) = misplaced(tree)
    assert line.startswith(f"{name}: ")
    assert said in line
