"""Every place that a path leads through, and where it ends (I11)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.system.symlinks import MAX_LINKS, follow
from keyhole.system.walk import LinkInPath


def trail(path: Path) -> tuple[Path, ...]:
    return tuple(Path(entry) for entry in follow(str(path)).entries)


def test_a_plain_path_is_its_own_steps(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    steps = trail(tmp_path / "a" / "b")
    assert steps[-2:] == (tmp_path / "a", tmp_path / "a" / "b")


def test_a_link_in_the_middle_is_one_of_the_steps(tmp_path: Path) -> None:
    (tmp_path / "end").mkdir()
    (tmp_path / "middle").symlink_to("end")
    (tmp_path / "start").symlink_to(tmp_path / "middle")
    steps = trail(tmp_path / "start" / "file")
    assert [tmp_path / n for n in ("start", "middle", "end")] == [
        s for s in steps if s.parent == tmp_path
    ]
    assert steps[-1] == tmp_path / "end" / "file"


def test_dots_are_taken_as_the_kernel_takes_them(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/away")
    steps = trail(Path(f"{tmp_path}/link/../here"))
    assert steps[-1] == tmp_path / "far" / "here"


def test_a_loop_has_no_trail(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(LinkInPath):
        follow(f"{tmp_path}/a")


def test_a_path_is_followed_as_the_kernel_does_and_no_further(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l").symlink_to("d/../d/./x")
    trail = follow(f"{tmp_path}/l")
    assert trail.end == os.path.realpath(tmp_path / "l")
    assert trail.links == ((f"{tmp_path}/l", "d/../d/./x"),)
    long = "/".join(["d/.."] * 600)
    (tmp_path / "long").symlink_to(f"{long}/d")
    with pytest.raises(LinkInPath):
        follow(f"{tmp_path}/long")
    for index in range(MAX_LINKS + 1):
        (tmp_path / f"c{index}").symlink_to(f"c{index + 1}")
    with pytest.raises(LinkInPath):
        follow(f"{tmp_path}/c0")
    assert follow(f"{tmp_path}/c1").end == f"{tmp_path}/c{MAX_LINKS + 1}"
