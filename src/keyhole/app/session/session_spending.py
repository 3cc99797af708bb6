"""One session's part of the account: what its data plane reports is added, what all sessions have
spent is told.

Used by the process that holds a sandbox (`app/run/run_spending.py`) and by the keeper. A data plane
reports sums, never differences: a report that is lost or repeated changes nothing. It reads hostile
bytes, so it is believed within bounds: services are those of the accepted policy, a sum only grows.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from keyhole.app.setup.period_spending import account_of, period_services, spending_of
from keyhole.app.setup.spending_ledger import MAX_AMOUNT
from keyhole.model.errors import ResourceUnusable
from keyhole.policy.budget import PeriodSpending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.setup.period_spending import SpendingReport
    from keyhole.app.setup.spending_ledger import LedgerStamp, SpendingLedger
    from keyhole.policy.policy import Policy


class SessionSpending:
    """What one session has spent. `settle` may be called by any thread, and may take a while; the
    others by one thread."""

    def __init__(self, ledger: SpendingLedger) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._said: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._accounts: dict[str, str] = {}
        self._seen: LedgerStamp | None = None
        self._failed = False

    def hear(self, policy: Policy, said: Mapping[str, object]) -> bool:
        """Note what the data plane says that its services have cost so far. Returns whether that is
        more than before. Takes no time."""
        before = dict(self._said)
        for service in policy.services:
            sum_ = said.get(service.name)
            if type(sum_) is int and sum_ > self._said.get(service.name, 0):
                self._accounts[service.name] = account_of(service)
                self._said[service.name] = min(MAX_AMOUNT, sum_)
        return self._said != before

    @property
    def unwritten(self) -> bool:
        """Whether something that was heard is not in the account."""
        return self._said != self._counted

    def settle(self, policy: Policy) -> SpendingReport:
        """Write what is not counted yet, and say what all sessions have spent."""
        with self._lock:
            return self._settle(policy)

    def is_behind(self, policy: Policy, stamp: LedgerStamp | None) -> bool:
        """Whether `settle` is due: something is not written, or others have spent, too, where that
        matters. `stamp` is that of the ledger now. Takes no time."""
        if self._lock.locked():
            return False  # it is under way
        if self.unwritten:
            return True
        return (self._failed or stamp != self._seen) and bool(period_services(policy))

    def _settle(self, policy: Policy) -> SpendingReport:
        amounts: dict[str, int] = {}
        counted = dict(self._said)
        for name, sum_ in counted.items():
            account = self._accounts[name]
            amounts[account] = amounts.get(account, 0) + sum_ - self._counted.get(name, 0)
        try:
            totals = self._ledger.add(amounts) if any(amounts.values()) else self._ledger.read()
            self._counted = counted
            self._seen, self._failed = self._ledger.stamp(), False
        except (OSError, ResourceUnusable):
            self._failed = True
            return {name: PeriodSpending(known=False) for name in period_services(policy)}
        return spending_of(policy, totals, self._counted)
