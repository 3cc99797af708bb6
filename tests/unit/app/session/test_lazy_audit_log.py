"""A data plane's log is there when it is needed, and nothing is admitted without it (I8)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from keyhole.app.session.lazy_audit_log import LazyAuditLog
from tests.rigs.audit.writing import checked, denied

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_has_nothing_to_write_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = LazyAuditLog(path)
    log.begin("s1", 5)
    log.finish("s1")
    log.flush()
    log.close()
    assert log.head() == ""
    assert not path.exists()


def test_it_is_open_before_anything_is_admitted(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = LazyAuditLog(path)
    log.begin("s1", 5)
    assert log.admitting
    assert len(list(path.iterdir())) == 1
    log.begin("s2", 5)
    log.record("s1", denied())
    log.flush()
    log.finish("s1")
    log.close()
    assert checked(path, log.head()).whole


def admits(log: LazyAuditLog) -> bool:
    return log.admitting


def test_nothing_is_admitted_while_it_cannot_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused meanwhile is written when it can be."""
    clock = [100.0]
    monkeypatch.setattr("keyhole.app.session.lazy_audit_log.time.monotonic", lambda: clock[0])
    path = tmp_path / "audit"
    path.write_text("in the way")
    log = LazyAuditLog(path)
    assert not admits(log)
    log.record("s1", denied("early.example"))
    path.unlink()
    assert not admits(log)  # it is not tried again at once
    clock[0] += 2
    assert admits(log)
    log.close()
    (file,) = path.iterdir()
    assert b"early.example" in file.read_bytes()


def test_what_there_was_no_room_for_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: beyond the bound the oldest go, and the log says how many."""
    monkeypatch.setattr("keyhole.app.session.lazy_audit_log.MAX_WAITING", 3)
    path = tmp_path / "audit"
    path.write_text("in the way")
    log = LazyAuditLog(path)
    log.begin("s1", 50)
    for number in range(5):
        log.record("s1", denied(f"n{number}.example"))
    path.unlink()
    log.close()  # what waits is written at the end, without waiting for the next attempt
    (file,) = path.iterdir()
    written = file.read_bytes()
    assert [n for n in range(5) if f"n{n}.example".encode() in written] == [2, 3, 4]
    assert b'"lost"' in written
    assert b'"count":2' in written
    assert checked(path, log.head()).whole


def test_a_host_without_a_thread_left_keeps_nothing_of_each_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: attempts do not fill the directory, which would push older files out of it."""
    path = tmp_path / "audit"
    log = LazyAuditLog(path)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert not admits(log)
        assert not log.admits("s1")
    assert list(path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
    monkeypatch.setattr(log, "_retry_at", 0.0)
    assert admits(log)
    log.close()
