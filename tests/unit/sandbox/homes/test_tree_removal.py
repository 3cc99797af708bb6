"""Trees that untrusted code filled are removed whole, and nothing else is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.homes.tree_removal import remove_tree

if TYPE_CHECKING:
    from pathlib import Path

DEEP = 3000
"""Deeper than Python recurses, and than a path may be long."""


def removed(parent: Path, name: str) -> None:
    opened = os.open(parent, os.O_PATH)
    try:
        remove_tree(opened, name)
    finally:
        os.close(opened)


def test_links_pipes_and_closed_directories_go_and_the_outside_stays(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    (outside / "work").mkdir(parents=True)
    (outside / "work/file").write_text("mine")
    (tree / "closed/below").mkdir(parents=True)
    (tree / "closed/below/file").write_text("x")
    (tree / "to-directory").symlink_to(outside)
    (tree / "closed/to-file").symlink_to(outside / "work/file")
    os.mkfifo(tree / "pipe")
    (tree / "closed/below").chmod(0)
    (tree / "closed").chmod(0)
    removed(tmp_path, "tree")
    assert not tree.exists()
    assert (outside / "work/file").read_text() == "mine"


def test_a_tree_of_any_depth_goes(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_PATH)
    for _ in range(DEEP):
        os.mkdir("directory-of-a-deep-tree", dir_fd=here)
        below = os.open("directory-of-a-deep-tree", os.O_PATH, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    removed(tmp_path, "directory-of-a-deep-tree")
    assert os.listdir(tmp_path) == []


def test_a_link_in_place_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    (tmp_path / "tree").symlink_to(outside)
    with pytest.raises(OSError, match="directory"):
        removed(tmp_path, "tree")
    assert (outside / "file").read_text() == "mine"
