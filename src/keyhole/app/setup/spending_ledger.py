"""The account of what a user's sessions have spent, by service, today and in this month.

One small file for all gateways of a user, in Keyhole's state directory, which no sandbox sees. The
process that holds a sandbox, or the keeper, writes it; a data plane only reports to them. A lock
orders the writers, and a new file takes the place of the old one, so that a crash leaves either.
Days and months are UTC's, as on a provider's bill.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from keyhole.model.errors import ResourceUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MAX_LEDGER = 64 * 1024
"""Bytes of the file: twice what all its services take."""

MAX_SERVICES = 256
"""Services of an account; policies name them."""

MAX_AMOUNT = 2**53 - 1
"""The largest sum, in billionths of a dollar: nine million dollars. It stays there."""

LOCK_SECONDS = 2.0
"""How long to wait for the lock. Its holder may have been stopped by Ctrl-Z while it wrote."""

_LOCK_WAIT = 0.02


LedgerStamp: TypeAlias = tuple[int, int, str]
"""The file's number, when it was written, and the day."""


class LedgerTotals(Struct, frozen=True):
    """What the account says."""

    today: str
    month: str
    day_spent: Mapping[str, int]
    """Billionths of a dollar today, by service."""
    month_spent: Mapping[str, int]


class SpendingLedger:
    """The account in one directory, which may not exist yet."""

    def __init__(self, directory: Path, now: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._file = directory / "account.json"
        self._now = now

    def stamp(self) -> LedgerStamp | None:
        """Differs when the account or the day has changed since; None if it cannot be looked at."""
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return 0, 0, self._periods()[0]
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, self._periods()[0]

    def read(self) -> LedgerTotals:
        """The account now. Raises OSError or ResourceUnusable."""
        return self._current(self._load())

    def add(self, amounts: Mapping[str, int]) -> LedgerTotals:
        """Add what was spent. Raises OSError or ResourceUnusable."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(self._directory / "lock", flags, 0o600)
        try:
            self._wait_for(lock)
            found = self._current(self._load())
            added = LedgerTotals(
                found.today,
                found.month,
                _sum(found.day_spent, amounts),
                _sum(found.month_spent, amounts),
            )
            self._write(added)
            return added
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOCK_WAIT)
            else:
                return

    def _periods(self) -> tuple[str, str]:
        today = time.strftime("%Y-%m-%d", time.gmtime(self._now()))
        return today, today[:7]

    def _current(self, found: LedgerTotals) -> LedgerTotals:
        """The account of the day and month of now. One that is ahead stays: a clock that is set
        back gives nobody a new day."""
        today, month = self._periods()
        if today > found.today:
            found = LedgerTotals(today, found.month, {}, found.month_spent)
        if month > found.month:
            found = LedgerTotals(found.today, month, found.day_spent, {})
        return found

    def _load(self) -> LedgerTotals:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return LedgerTotals("", "", {}, {})
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(MAX_LEDGER + 1)
        try:
            if len(data) > MAX_LEDGER:
                raise ValueError
            said = json.loads(data)
            return LedgerTotals(
                str(said["today"]),
                str(said["month"]),
                _amounts(said["day_spent"]),
                _amounts(said["month_spent"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ResourceUnusable(
                f"{self._file} is no account of what was spent; remove it to begin anew"
            ) from None

    def _write(self, totals: LedgerTotals) -> None:
        told = {name: getattr(totals, name) for name in LedgerTotals.__struct_fields__}
        made = self._directory / f"account.{os.getpid()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(made, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(told).encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, self._file)
        except BaseException:
            made.unlink(missing_ok=True)
            raise


def _sum(spent: Mapping[str, int], amounts: Mapping[str, int]) -> dict[str, int]:
    found = dict(spent)
    for name, amount in amounts.items():
        found[name] = min(MAX_AMOUNT, found.get(name, 0) + max(0, amount))
    if len(found) > MAX_SERVICES:
        raise ResourceUnusable(f"an account of what was spent has at most {MAX_SERVICES} services")
    return found


def _amounts(said: dict[str, object]) -> dict[str, int]:
    return {str(name): _amount(value) for name, value in said.items()}


def _amount(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_AMOUNT:
        raise ValueError
    return value
