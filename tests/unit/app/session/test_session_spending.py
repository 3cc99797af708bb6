"""A data plane's reports of what it spent are added once, within bounds, and others are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.session.session_spending import SessionSpending
from keyhole.app.setup.period_spending import read_spending
from keyhole.app.setup.spending_ledger import MAX_AMOUNT, SpendingLedger
from keyhole.policy.budget import PeriodSpending
from tests.rigs.policies import loaded

if TYPE_CHECKING:
    from pathlib import Path

PRICED = 'secret = "store:m"\nprices = { "*" = { input = "3 USD", output = "15 USD" } }\n'
POLICY = loaded(f'[services.model]\n{PRICED}budget = {{ day = "20 USD" }}\n').policy
SAME = loaded(f'[services.mine]\nuse = "model"\n{PRICED}budget = {{ month = "9 USD" }}\n').policy
FREE = loaded(f"[services.model]\n{PRICED}").policy


def day(spending: dict[str, PeriodSpending]) -> tuple[int, int]:
    return spending["model"].day, spending["model"].counted


def test_sums_are_added_once_whatever_is_lost_or_repeated(tmp_path: Path) -> None:
    spending = SessionSpending(SpendingLedger(tmp_path))
    assert spending.hear(POLICY, {"model": 5})
    assert not spending.hear(POLICY, {"model": 5})
    assert not spending.hear(POLICY, {"model": 3}), "a sum only grows"
    assert day(spending.settle(POLICY)) == (5, 5)
    assert spending.hear(POLICY, {"model": 12})
    assert day(spending.settle(POLICY)) == (12, 12)


def test_a_data_plane_is_believed_within_bounds(tmp_path: Path) -> None:
    """Attack: a data plane that was taken over names other accounts, or gives money back."""
    ledger = SpendingLedger(tmp_path)
    spending = SessionSpending(ledger)
    assert not spending.hear(POLICY, {"other": 5, "model": -7})
    assert not spending.hear(POLICY, {"model": "5"})
    assert spending.hear(POLICY, {"model": 2**80})
    spending.settle(POLICY)
    assert ledger.read().day_spent == {"model": MAX_AMOUNT}


def test_sessions_share_the_account_of_a_catalogue_entry_whatever_they_call_it(
    tmp_path: Path,
) -> None:
    ledger = SpendingLedger(tmp_path)
    one, other = SessionSpending(ledger), SessionSpending(ledger)
    one.hear(POLICY, {"model": 5})
    one.settle(POLICY)
    other.hear(SAME, {"mine": 2})
    assert other.settle(SAME)["mine"].month == 7
    assert one.is_behind(POLICY, ledger.stamp())
    assert day(one.settle(POLICY)) == (7, 5)
    assert not one.is_behind(POLICY, ledger.stamp())
    assert read_spending(POLICY, ledger)["model"].day == 7


def test_a_session_without_such_a_budget_reports_and_is_told_nothing(tmp_path: Path) -> None:
    ledger = SpendingLedger(tmp_path)
    spending = SessionSpending(ledger)
    assert read_spending(FREE, ledger) == {}
    assert not spending.is_behind(FREE, ledger.stamp())
    spending.hear(FREE, {"model": 4})
    assert spending.is_behind(FREE, ledger.stamp())
    assert spending.settle(FREE) == {}
    assert ledger.read().day_spent == {"model": 4}
    SessionSpending(ledger).settle(FREE)
    assert not spending.is_behind(FREE, ledger.stamp())


def test_what_could_not_be_written_is_written_later_and_nothing_passes_meanwhile(
    tmp_path: Path,
) -> None:
    ledger = SpendingLedger(tmp_path / "account")
    spending = SessionSpending(ledger)
    (tmp_path / "account").write_text("no directory")
    spending.hear(POLICY, {"model": 5})
    assert spending.settle(POLICY) == {"model": PeriodSpending(known=False)}
    assert spending.unwritten
    assert read_spending(POLICY, ledger) == {"model": PeriodSpending(known=False)}
    (tmp_path / "account").unlink()
    assert spending.is_behind(POLICY, ledger.stamp())
    assert day(spending.settle(POLICY)) == (5, 5)


def test_a_service_that_a_new_policy_has_no_longer_is_counted_to_its_account(
    tmp_path: Path,
) -> None:
    ledger = SpendingLedger(tmp_path)
    spending = SessionSpending(ledger)
    spending.hear(SAME, {"mine": 3})
    assert day(spending.settle(POLICY)) == (3, 0)
