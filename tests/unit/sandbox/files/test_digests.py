"""Content is told within bounds, and what is not read is compared all the same (I9, I11)."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.sandbox.files import digests
from keyhole.sandbox.files.comparison import compare_snapshots, finding_lines, take_snapshot
from keyhole.sandbox.files.digests import HASH_SECONDS, MAX_DIGEST, Digests, FileStamp, is_same
from keyhole.sandbox.files.mount_plan import ComparisonScope

if TYPE_CHECKING:
    from pathlib import Path

    from tests.rigs.sandbox.worlds import World


def settle(path: Path) -> None:
    """Nobody can make a file look old: its time of change is waited for."""
    while time.time() - path.stat().st_ctime <= 0.02:
        time.sleep(0.005)


def test_content_counts_and_not_when_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a")
    first = Digests().file(str(path))
    path.write_text("a")
    assert is_same(first, Digests().file(str(path))) is True
    path.write_text("b")
    assert is_same(first, Digests().file(str(path))) is False
    path.write_text("a")
    path.chmod(0o755)
    assert is_same(first, Digests().file(str(path))) is False


@pytest.mark.parametrize("bound", ["most", "total", "seconds"])
def test_a_file_that_is_not_read_is_compared_by_what_no_call_sets_back(
    tmp_path: Path, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9, I11. Control: one that nobody touched is the same."""
    monkeypatch.setattr(digests, "SETTLED_SECONDS", 0.01)
    path = tmp_path / "x"
    path.write_text("aaaaaaaa")
    settle(path)
    was = path.stat()
    limits = {bound: 4 if bound != "seconds" else -1.0}
    before = Digests(**limits).file(str(path))  # type: ignore[arg-type]
    assert before.content == ""
    assert is_same(before, Digests(**limits).file(str(path))) is True  # type: ignore[arg-type]
    assert is_same(before, Digests().file(str(path))) is True
    path.write_text("bbbbbbbb")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert is_same(before, Digests().file(str(path))) is False


def test_a_file_that_was_written_a_moment_before_and_not_read_is_said_to_be_unsure() -> None:
    """I11: two changes within one tick of the file system's clock look like one."""
    fresh = FileStamp("", "True 1 8 5", settled=False)
    assert is_same(fresh, FileStamp("", "True 1 8 5")) is None
    assert is_same(fresh, FileStamp("", "True 1 8 6")) is False
    assert (
        is_same(FileStamp("x", "True 1 8 5", settled=False), FileStamp("x", "True 2 8 9")) is True
    )


def test_what_cannot_be_compared_is_said_and_not_taken_for_unchanged(world: World) -> None:
    (world.project / ".envrc").write_bytes(b"x" * (MAX_DIGEST + 1))
    scope = ComparisonScope((str(world.project),))
    before = take_snapshot(scope)
    assert finding_lines(compare_snapshots(before, take_snapshot(scope))) == (
        f"not compared: {world.project}/.envrc",
    )


def test_a_huge_sparse_file_costs_nothing(world: World) -> None:
    """I9."""
    scope = ComparisonScope((str(world.project),))
    before = take_snapshot(scope)
    with (world.project / ".envrc").open("wb") as file:
        file.truncate(1 << 40)
    started = time.monotonic()
    (line,) = finding_lines(compare_snapshots(before, take_snapshot(scope)))
    assert line.startswith("new: ")
    assert time.monotonic() - started < HASH_SECONDS


def test_many_files_are_read_for_a_bounded_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: those that come too late are not read, and not forgotten."""
    for index in range(50):
        world.write(f".vscode/{index:02}", "x" * 1000)
    scope = ComparisonScope((str(world.project),))
    read: list[str] = []
    content = Digests._content

    def noted(self: Digests, path: str, found: os.stat_result) -> str:
        read.append(path)
        return content(self, path, found)

    monkeypatch.setattr(Digests, "_content", noted)
    found = take_snapshot(scope, digests=Digests(total=10_000))
    assert len(read) == 10
    assert len(found.sights) == 50
    read.clear()
    assert len(take_snapshot(scope, digests=Digests(seconds=-1.0)).sights) == 50
    assert read == []


def test_pipes_devices_and_vanished_files_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    marks = [Digests().file(str(tmp_path / name)) for name in ("pipe", "link", "gone")]
    assert len({mark.content for mark in marks}) == 3
    assert all(mark.content for mark in marks)


@pytest.mark.parametrize("becomes", ["pipe", "other", "longer"])
def test_a_file_that_changes_while_it_is_read_has_no_content(
    tmp_path: Path, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I11: another sandbox of the same project may be at work. Control: `test_content_counts`."""
    path = tmp_path / "x"
    path.write_text("a")
    opened = os.open

    def swapped(name: str, flags: int) -> int:
        if becomes == "longer":
            with path.open("a") as file:
                file.write("more")
        else:
            path.unlink()
            os.mkfifo(path) if becomes == "pipe" else path.write_text("b")
        return opened(name, flags)

    monkeypatch.setattr(os, "open", swapped)
    assert Digests().file(str(path)).content == ""
