"""Budgets and what was spent in words, for every list and screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.model.money import show_money
from keyhole.model.quantity import show_size

if TYPE_CHECKING:
    from keyhole.control.values import BudgetView, SessionView

_BYTES = ("upload", "download")
_MONEY = ("session", "day", "month")


def budget_words(budget: BudgetView) -> tuple[str, str]:
    """The use of a budget and its limit, in the unit that its name tells."""
    kind = budget.name.rpartition(".")[2]
    show = show_money if kind in _MONEY else show_size if kind in _BYTES else str
    return show(budget.used), show(budget.limit)


def spent_words(session: SessionView) -> str:
    """What the tokens of a session cost. `+ ?` says that some have no known price."""
    if not session.spent and not session.unpriced:
        return "–"
    known = show_money(session.spent) if session.spent else ""
    return " + ".join(filter(None, (known, "?" if session.unpriced else "")))
