"""What the account says of the services of a policy that have a budget for a day or a month."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from keyhole.model.errors import ResourceUnusable
from keyhole.policy.budget import PERIODS, PeriodSpending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from keyhole.app.setup.spending_ledger import LedgerTotals, SpendingLedger
    from keyhole.policy.policy import Policy, Service

SpendingReport: TypeAlias = dict[str, PeriodSpending]
"""By the policy's name of a service."""


def account_of(service: Service) -> str:
    """The name of a service in the account: the catalogue's, so that projects that call it
    differently share it."""
    return service.template or service.name


def period_services(policy: Policy) -> tuple[str, ...]:
    """The services with a budget for a day or a month."""
    return tuple(
        each.name
        for each in policy.services
        if each.limits and any(getattr(each.limits.budget, name) is not None for name in PERIODS)
    )


def spending_of(policy: Policy, totals: LedgerTotals, counted: Mapping[str, int]) -> SpendingReport:
    """What the account says of the services that have a budget for a day or a month."""
    found: SpendingReport = {}
    bounded = set(period_services(policy))
    for service in policy.services:
        if service.name in bounded:
            account = account_of(service)
            found[service.name] = PeriodSpending(
                totals.day_spent.get(account, 0),
                totals.month_spent.get(account, 0),
                counted.get(service.name, 0),
                totals.today,
            )
    return found


def read_spending(policy: Policy, ledger: SpendingLedger) -> SpendingReport:
    """What was spent before a session begins."""
    bounded = period_services(policy)
    if not bounded:
        return {}
    try:
        return spending_of(policy, ledger.read(), {})
    except (OSError, ResourceUnusable):
        return {name: PeriodSpending(known=False) for name in bounded}
