"""A budget is shown in the unit that it is in, and money without a known price says so."""

from __future__ import annotations

import pytest

from keyhole.control.budget_words import budget_words, spent_words
from keyhole.control.values import BudgetView, SessionPhase, SessionView


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("services.a.budget.requests", ("1500000", "3000000")),
        ("services.a.budget.tokens", ("1500000", "3000000")),
        ("services.a.budget.upload", ("1.4 MiB", "2.9 MiB")),
        ("services.a.budget.day", ("0.001500 USD", "0.003000 USD")),
    ],
)
def test_the_unit_of_a_budget_is_that_of_its_name(name: str, shown: tuple[str, str]) -> None:
    assert budget_words(BudgetView(name, 1_500_000, 3_000_000)) == shown


@pytest.mark.parametrize(
    ("spent", "unpriced", "shown"),
    [(0, 0, "–"), (10**9, 0, "1.00 USD"), (10**9, 5, "1.00 USD + ?"), (0, 5, "?")],
)
def test_what_has_no_price_says_so(spent: int, unpriced: int, shown: str) -> None:
    view = SessionView(
        "a" * 12, SessionPhase.OPEN, "x", "/p", 1, 1, None, 0, 0, 0, 0, 0, (),
        spent=spent, unpriced=unpriced,
    )  # fmt: skip
    assert spent_words(view) == shown
