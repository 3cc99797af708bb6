"""Files and mount points in a tree that untrusted code filled: nothing outside is touched (I11)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.bwrap.kept_files import KeptDirectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KINDS = ("file", "link", "dead-link", "link-to-directory", "pipe", "directory", "closed-directory")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[KeptDirectory, Path, Path]]:
    """A kept tree, its path, and a directory outside with something in it."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "settings").write_text("of the host")
    descriptor = os.open(inside, os.O_PATH)
    yield KeptDirectory(descriptor, None), inside, outside
    os.close(descriptor)


def left_behind(kind: str, path: Path, outside: Path) -> None:
    """What code could have left at a path."""
    made: dict[str, Callable[[], object]] = {
        "file": lambda: path.write_text("left"),
        "link": lambda: path.symlink_to(outside / "settings"),
        "dead-link": lambda: path.symlink_to(outside / "new"),
        "link-to-directory": lambda: path.symlink_to(outside),
        "pipe": lambda: os.mkfifo(path),
        "directory": lambda: (path / "full").mkdir(parents=True),
        "closed-directory": lambda: path.mkdir(mode=0),
    }
    made[kind]()


def unharmed(outside: Path) -> bool:
    names = sorted(os.listdir(outside))
    return names == ["settings"] and (outside / "settings").read_text() == "of the host"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_written_over_whatever_lies_there(
    kind: str, tree: tuple[KeptDirectory, Path, Path]
) -> None:
    kept, inside, outside = tree
    left_behind(kind, inside / "a", outside)
    kept.write_file("a", b"ours", 0o600)
    assert not (inside / "a").is_symlink()
    assert (inside / "a").read_bytes() == b"ours"
    assert (inside / "a").stat().st_mode & 0o777 == 0o600
    assert unharmed(outside)


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_above_a_file_is_made_whatever_lies_there(
    kind: str, tree: tuple[KeptDirectory, Path, Path]
) -> None:
    kept, inside, outside = tree
    left_behind(kind, inside / "a", outside)
    kept.write_file("a/b/settings", b"ours", 0o644)
    assert (inside / "a").is_dir()
    assert not (inside / "a").is_symlink()
    assert (inside / "a/b/settings").read_bytes() == b"ours"
    assert unharmed(outside)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_point_is_a_file_of_the_tree(
    kind: str, tree: tuple[KeptDirectory, Path, Path]
) -> None:
    kept, inside, outside = tree
    left_behind(kind, inside / "a", outside)
    kept.make_mount_point("a")
    assert (inside / "a").is_file()
    assert not (inside / "a").is_symlink()
    # A file that is there stays: another sandbox may have something mounted on it.
    assert (inside / "a").read_text() == ("left" if kind == "file" else "")
    assert unharmed(outside)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_of_ours_replaces_whatever_lies_there(
    kind: str, tree: tuple[KeptDirectory, Path, Path]
) -> None:
    kept, inside, outside = tree
    left_behind(kind, inside / "a", outside)
    kept.make_link("a", "/opt/program")
    assert os.readlink(inside / "a") == "/opt/program"
    number = (inside / "a").lstat().st_ino
    kept.make_link("a", "/opt/program")
    assert (inside / "a").lstat().st_ino == number
    assert unharmed(outside)


def test_what_was_in_the_way_is_beside_it(tree: tuple[KeptDirectory, Path, Path]) -> None:
    kept, inside, _ = tree
    (inside / "a").mkdir()
    (inside / "a/b").write_text("work")
    kept.write_file("a", b"ours", 0o600)
    (moved,) = inside.glob("a.aside-*")
    assert (moved / "b").read_text() == "work"
    assert not list(inside.glob(".keyhole-*"))


def test_a_file_with_a_second_name_is_replaced_and_not_written_through(
    tree: tuple[KeptDirectory, Path, Path],
) -> None:
    kept, inside, outside = tree
    os.link(outside / "settings", inside / "a")
    kept.write_file("a", b"ours", 0o600)
    kept.make_directory("c/d")
    assert (inside / "c/d").is_dir()
    assert unharmed(outside)
