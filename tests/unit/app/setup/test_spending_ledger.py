"""The account of what was spent survives processes, crashes and other writers, and stays small."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from keyhole.app.setup.spending_ledger import (
    MAX_AMOUNT,
    MAX_LEDGER,
    MAX_SERVICES,
    SpendingLedger,
)
from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from pathlib import Path

NOON = 1_795_003_200.0  # 2026-11-18
DAY = 86_400.0


def test_sums_are_kept_by_service_for_the_day_and_the_month(tmp_path: Path) -> None:
    now = [NOON]
    ledger = SpendingLedger(tmp_path / "spending", lambda: now[0])
    assert ledger.read().day_spent == {}
    ledger.add({"a": 5, "b": 1})
    assert SpendingLedger(tmp_path / "spending", lambda: now[0]).add({"a": 7}).day_spent == {
        "a": 12, "b": 1
    }  # fmt: skip
    now[0] += DAY
    found = ledger.read()
    assert (found.day_spent, found.month_spent) == ({}, {"a": 12, "b": 1})
    now[0] += 20 * DAY
    assert ledger.add({"a": 2}).month_spent == {"a": 2}


def test_a_clock_that_is_set_back_gives_no_new_day(tmp_path: Path) -> None:
    now = [NOON]
    ledger = SpendingLedger(tmp_path, lambda: now[0])
    ledger.add({"a": 5})
    now[0] -= 40 * DAY
    assert ledger.add({"a": 1}).day_spent == {"a": 6}


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    """Each `keyhole run` is a process of its own."""
    program = (
        "import sys, pathlib\n"
        "from keyhole.app.setup.spending_ledger import SpendingLedger\n"
        "ledger = SpendingLedger(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(20): ledger.add({'a': 1})\n"
    )
    made = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(4)]
    assert [each.wait() for each in made] == [0] * 4
    assert SpendingLedger(tmp_path).read().day_spent == {"a": 80}
    assert sorted(os.listdir(tmp_path)) == ["account.json", "lock"]
    assert (tmp_path / "account.json").stat().st_mode & 0o777 == 0o600


def test_a_writer_that_was_stopped_holds_the_others_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-Z in the midst of writing: others say that the account is unknown, and go on."""
    monkeypatch.setattr("keyhole.app.setup.spending_ledger.LOCK_SECONDS", 0.1)
    ledger = SpendingLedger(tmp_path)
    ledger.add({"a": 1})
    held = os.open(tmp_path / "lock", os.O_RDWR)

    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError):
        ledger.add({"a": 1})
    threading.Timer(0.05, os.close, (held,)).start()
    assert ledger.add({"a": 1}).day_spent == {"a": 2}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b"[" * 5000,
        json.dumps({"today": "", "month": "", "day_spent": {"a": -1}, "month_spent": {}}).encode(),
        json.dumps({"today": "", "month": "", "day_spent": {"a": 0.5}, "month_spent": {}}).encode(),
        json.dumps({"today": "", "month": "", "day_spent": [], "month_spent": {}}).encode(),
        b" " * (MAX_LEDGER + 1),
    ],
)
def test_a_file_that_is_no_account_is_not_taken_for_an_empty_one(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "account.json").write_bytes(data)
    with pytest.raises(ResourceUnusable, match="remove it"):
        SpendingLedger(tmp_path).read()


def test_it_has_a_largest_size(tmp_path: Path) -> None:
    """I9: a data plane that was taken over bloats it as little as a sandbox."""
    ledger = SpendingLedger(tmp_path)
    full = {f"{n:03}{'x' * 60}": MAX_AMOUNT for n in range(MAX_SERVICES)}
    ledger.add(full)
    assert ledger.add({next(iter(full)): MAX_AMOUNT}).day_spent == full
    assert ledger.add({next(iter(full)): -5}).day_spent == full
    with pytest.raises(ResourceUnusable):
        ledger.add({"one more": 1})
    assert (tmp_path / "account.json").stat().st_size <= MAX_LEDGER


def test_a_directory_that_cannot_be_written_leaves_the_account_as_it_was(tmp_path: Path) -> None:
    ledger = SpendingLedger(tmp_path)
    ledger.add({"a": 1})
    (tmp_path / f"account.{os.getpid()}.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        ledger.add({"a": 1})
    assert ledger.read().day_spent == {"a": 1}
