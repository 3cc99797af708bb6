"""The log has room ahead of need, and on a full disk each session has a share of that (I12)."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from keyhole.audit import reserve
from keyhole.audit.log import AuditLog, Clock, LogBounds
from keyhole.audit.reserve import DiskReserve
from keyhole.model.decision import Verdict
from keyhole.model.event import Event, EventKind
from tests.rigs.audit.writing import all_lines, checked

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024
EVENT = Event(EventKind.CONNECT, Verdict.DENY, "no-rule", host="x" * 200)
CHANGE = Event(EventKind.REF, Verdict.ALLOW, "rule", host="x" * 200)
"""One that no rate folds."""


class Disk:
    """What can be allocated; bytes are written all the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code = 0
        self.asked: list[tuple[int, int]] = []
        monkeypatch.setattr(reserve, "_allocate", lambda: self._allocate)

    def _allocate(self, _: int, offset: int, length: int) -> int:
        self.asked.append((offset, length))
        return self.code


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def reasons(path: Path, session: str = "") -> list[str]:
    return [line["reason"] for line in all_lines(path) if line["session"] == session]


def small(**more: int) -> LogBounds:
    return LogBounds(reserve=64 * KIB, **more)


def blocks(path: Path) -> int:
    (file,) = path.glob("*.jsonl")
    return file.stat().st_blocks * 512


def test_room_is_allocated_ahead_and_given_back(tmp_path: Path) -> None:
    """By the file system's own count; the file itself does not grow."""
    with AuditLog(tmp_path, bounds=LogBounds(reserve=4096 * KIB)) as log:
        log.record("s1", EVENT)
        log.flush()
        (file,) = tmp_path.glob("*.jsonl")
        if blocks(tmp_path) < 1024 * KIB:
            pytest.skip("this file system allocates nothing ahead")
        assert blocks(tmp_path) >= 4096 * KIB
        assert file.stat().st_size < 64 * KIB
    assert blocks(tmp_path) < 256 * KIB
    assert checked(tmp_path).whole


def test_what_a_killed_writer_had_ahead_is_given_back_by_the_next(tmp_path: Path) -> None:
    name = tmp_path / "20260101T000000Z-1-00000000.jsonl"
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, b"{}\n")
    DiskReserve(descriptor).ensure(3, 4096 * KIB)
    os.close(descriptor)
    if name.stat().st_blocks * 512 < 1024 * KIB:
        pytest.skip("this file system allocates nothing ahead")
    AuditLog(tmp_path).close()
    assert name.stat().st_blocks * 512 < 256 * KIB
    assert name.read_bytes() == b"{}\n"


def test_on_a_full_disk_one_session_cannot_use_up_another_s_share(
    tmp_path: Path, disk: Disk
) -> None:
    """Control: before, and when there is room again, both are admitted."""
    with AuditLog(tmp_path, bounds=small()) as log:
        assert log.admits("hostile")
        disk.code = errno.ENOSPC
        for _ in range(100):
            log.record("hostile", CHANGE)
            log.flush()
        assert not log.admits("hostile")
        assert log.admits("ordinary")
        assert log.admitting
        # What is refused of it is counted, and what the other does is written.
        for _ in range(100):
            log.record("hostile", EVENT)
            log.record("ordinary", EVENT)
        log.flush()
        assert len(reasons(tmp_path, "ordinary")) == 100
        assert reasons(tmp_path, "hostile").count("no-rule") == 1
        disk.code = 0
        log.record("ordinary", EVENT)
        log.flush()
        assert log.admits("hostile")
    assert [r for r in reasons(tmp_path) if r in {"disk-full", "room-again"}] == [
        "disk-full", "room-again",
    ]  # fmt: skip


def test_room_again_is_noticed_while_nothing_is_written(tmp_path: Path, disk: Disk) -> None:
    """A session that is stopped writes nothing, so the log looks by itself."""
    with AuditLog(tmp_path, bounds=small(retry_every=0)) as log:
        disk.code = errno.EDQUOT
        for _ in range(100):
            log.record("s1", CHANGE)
            log.flush()
        assert not log.admits("s1")
        disk.code = 0
        while not log.admits("s1"):
            pass


def test_a_full_file_goes_on_while_there_is_no_room_for_the_next(
    tmp_path: Path, disk: Disk
) -> None:
    """A new file has no room ahead yet. Control: with room, it is begun."""
    bounds = small(file=64 * KIB, session=1024 * KIB)
    with AuditLog(tmp_path, bounds=bounds) as log:
        disk.code = errno.ENOSPC
        for _ in range(400):
            log.record("s1", CHANGE)
        log.flush()
        log.record("s1", CHANGE)
        log.flush()
        disk.code = 0
        count = len(list(tmp_path.glob("*.jsonl")))
        for _ in range(400):
            log.record("s2", CHANGE)
        log.flush()
        assert len(list(tmp_path.glob("*.jsonl"))) > count


def test_a_file_system_that_cannot_allocate_has_no_reserve_and_works_as_ever(
    tmp_path: Path, disk: Disk
) -> None:
    disk.code = errno.EOPNOTSUPP
    with AuditLog(tmp_path, Clock(), small()) as log:
        for _ in range(200):
            log.record("s1", CHANGE)
            log.flush()
        assert log.admits("s1")
        assert len(disk.asked) == 1


def test_no_more_than_a_quarter_of_what_is_free_is_kept(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyhole.audit.log_directory.LogDirectory.free", lambda _: 100 * KIB)
    with AuditLog(tmp_path, bounds=small()):
        assert [length for _, length in disk.asked] == [25 * KIB]
    monkeypatch.setattr("keyhole.audit.log_directory.LogDirectory.free", lambda _: 0)
    disk.asked.clear()
    with AuditLog(tmp_path, bounds=small()) as log:
        assert log.admits("s1")
        assert not disk.asked
