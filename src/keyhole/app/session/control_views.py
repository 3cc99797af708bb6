"""Grants and budgets of a session as a person sees them in a list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from keyhole.control.operation_table import MAX_OF_SESSION
from keyhole.control.values import BudgetView, GrantView
from keyhole.model.host import DEFAULT_PORT
from keyhole.system import clock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from keyhole.policy.budget import BudgetUse
    from keyhole.policy.grants import Grant as Granted


def grant_view(grant: Granted) -> GrantView:
    """A grant as a person sees it, with wall-clock times."""
    left = grant.expires - clock.now()
    port = "" if grant.port == DEFAULT_PORT else f":{grant.port}"
    return GrantView(f"{grant.host.name}{port}", int(time.time() + left), grant.uses)


def budget_views(uses: Iterable[BudgetUse]) -> tuple[BudgetView, ...]:
    """As many budgets as an answer has room for; `keyhole check` names all."""
    found = [BudgetView(use.name, use.used, use.limit) for use in uses]
    return tuple(found[:MAX_OF_SESSION])
