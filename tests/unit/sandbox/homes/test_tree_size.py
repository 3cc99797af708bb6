"""The size of a tree that untrusted code fills: nothing hides from it, nothing leads it out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from keyhole.sandbox.homes import tree_size
from keyhole.sandbox.homes.tree_size import MAX_DEPTH, measure_trees

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

MIB = 1 << 20


def test_a_closed_directory_counts_and_a_link_does_not(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    for directory in (outside, tree, tree / "closed"):
        directory.mkdir()
    (outside / "large").write_bytes(bytes(8 * MIB))
    (tree / "closed/file").write_bytes(b"x" * MIB)
    (tree / "away").symlink_to(outside)
    (tree / "closed").chmod(0)
    size = measure_trees([str(tree), str(tmp_path / "missing")], gently=True)
    assert size.whole
    assert MIB <= size.bytes < 2 * MIB


def test_a_sparse_file_counts_as_what_it_takes(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measure_trees([str(tmp_path)]).bytes < MIB


def test_too_many_entries_or_too_deep_ones_are_told(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).mkdir()
    assert measure_trees([str(tmp_path)], most=10).whole
    assert not measure_trees([str(tmp_path)], most=9).whole
    here = os.open(tmp_path, os.O_PATH)
    for _ in range(MAX_DEPTH + 1):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert not measure_trees([str(tmp_path)]).whole


def test_a_directory_that_is_closed_again_and_again_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: code inside closes a directory at the moment it is opened, so that the files in it
    are not counted. Root reads it all the same, so the refusal is made here."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "open").write_bytes(b"x" * MIB)
    assert measure_trees([str(tmp_path)]).whole
    usual = tree_size._open

    def refused(parent: int | None, name: str) -> int:
        if name == "closed":
            raise PermissionError(name)
        return usual(parent, name)

    monkeypatch.setattr(tree_size, "_open", refused)
    size = measure_trees([str(tmp_path)])
    assert not size.whole
    assert size.bytes >= MIB
