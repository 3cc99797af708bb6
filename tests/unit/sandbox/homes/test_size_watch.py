"""A sandbox that fills its kept home is told, and then ended (I9)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.sandbox.homes.size_watch import watch_size
from tests.rigs.waiting import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from keyhole.sandbox.interface import SandboxNotice

MIB = 1 << 20


class Watched:
    """Collects what is told."""

    def __init__(self) -> None:
        self.notices: list[SandboxNotice] = []
        self.came = threading.Event()
        self.ended = threading.Event()

    def told(self, notice: SandboxNotice) -> None:
        self.notices.append(notice)
        self.came.set()


def test_near_the_bound_it_is_said_and_over_it_the_sandbox_is_ended(tmp_path: Path) -> None:
    watched = Watched()
    (tmp_path / "file").write_bytes(b"x" * (MIB * 9 // 10))
    trees = (str(tmp_path),)
    with watch_size(trees, MIB, watched.ended.set, watched.told, first=0.0, every=0.01):
        assert watched.came.wait(PATIENCE)
        assert not watched.ended.is_set()
        (tmp_path / "more").write_bytes(b"x" * MIB)
        assert watched.ended.wait(PATIENCE)
    near, *over = watched.notices
    assert (near.reason, near.ends) == ("home-filling", False)
    assert [(each.reason, each.ends) for each in over] in ([], [("home-full", True)])


def test_more_entries_than_can_be_counted_are_over_the_bound(tmp_path: Path) -> None:
    watched = Watched()
    deep = tmp_path.joinpath(*["d"] * 130)
    deep.mkdir(parents=True)
    with watch_size((str(tmp_path),), MIB << 10, watched.ended.set, watched.told, first=0.0):
        assert watched.came.wait(PATIENCE)
    assert watched.ended.is_set()
    assert "more than can be counted" in watched.notices[0].line


def test_a_small_home_is_left_alone(tmp_path: Path) -> None:
    watched = Watched()
    with watch_size((str(tmp_path),), MIB, watched.ended.set, watched.told, first=0.0, every=0.0):
        assert not watched.came.wait(0.05)
    assert not watched.ended.is_set()
