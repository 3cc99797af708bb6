"""The tables of `keyhole ps`: named sandboxes, sessions, their budgets and their grants."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.cli.amounts import age, size
from keyhole.cli.tables import Cell, Column, Fit, Grid, cell
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.budget_words import budget_words, spent_words
from keyhole.control.values import SessionPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keyhole.cli.sandbox_rows import SandboxRow
    from keyhole.control.values import BudgetView, GrantView, SessionView

_STYLES = {
    SessionPhase.OPEN: "green",
    SessionPhase.FROZEN: "red",
    SessionPhase.REVOKED: "red",
    SessionPhase.SILENT: "red",
    SessionPhase.PREPARED: "yellow",
}

_NAMED_STYLES = {"running": "green", "closed": "red", "starting": "yellow"}

NEARLY = 0.8
"""Share of a budget from which on it is coloured."""


class ListedSession(Struct, frozen=True):
    """A session, and whether it has a gateway of its own."""

    view: SessionView
    own: bool


_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("GATEWAY"),
    Column("PROGRAM", Fit.CUT),
    Column("POLICY", Fit.CUT, needs=110),
    Column("AGE", right=True),
    Column("ENDS IN", right=True, needs=90),
    Column("CONNS", right=True),
    Column("ALLOWED", right=True),
    Column("DENIED", right=True),
    Column("SPENT", right=True, needs=100),
    Column("UP", right=True, needs=80),
    Column("DOWN", right=True, needs=80),
)
_SANDBOXES = (
    Column("NAME"),
    Column("STATE"),
    Column("ID"),
    Column("SINCE", right=True),
    Column("EXIT", right=True),
    Column("RUNTIME", needs=80),
    Column("IMAGE", Fit.CUT),
    Column("POLICY", Fit.CUT, needs=110),
)
_BUDGETS = (
    Column("ID"),
    Column("BUDGET", Fit.CUT),
    Column("USED", right=True),
    Column("OF", right=True),
)
_GRANTS = (
    Column("ID"),
    Column("GRANTED", Fit.CUT),
    Column("USES LEFT", right=True),
    Column("ENDS IN", right=True),
)


def grids(listed: Sequence[ListedSession], named: Sequence[SandboxRow]) -> tuple[Grid, ...]:
    """All tables that have a row, or a line that says what to type."""
    home = str(find_host_paths().home)
    boxes = (Grid(_SANDBOXES, tuple(_sandbox(each, home) for each in named)),) if named else ()
    if not listed and boxes:
        return boxes
    if not listed:
        return (Grid((), (), "no session is open; `keyhole run -- CMD` opens one"),)
    now = time.time()
    # The oldest first; the order of ids means nothing.
    listed = sorted(listed, key=lambda each: each.view.opened)
    sessions = [each.view for each in listed]
    grids = (
        Grid(_COLUMNS, tuple(_row(each, now, home) for each in listed)),
        Grid(_BUDGETS, tuple(_budget(s, each) for s in sessions for each in s.budgets)),
        Grid(_GRANTS, tuple(_grant(s, each, now) for s in sessions for each in s.grants)),
    )
    return (*boxes, *(grid for grid in grids if grid.rows))


def _sandbox(sandbox: SandboxRow, home: str) -> tuple[Cell, ...]:
    since = "–" if sandbox.since is None else age(time.time() - sandbox.since)
    return (
        cell(sandbox.name),
        cell(sandbox.state, _NAMED_STYLES.get(sandbox.state, "")),
        cell(sandbox.session or "–"),
        cell(since),
        cell(sandbox.code),
        cell(sandbox.runtime),
        cell(sandbox.image or "–"),
        cell(_short(sandbox.policy, home)),
    )


def _row(listed: ListedSession, now: float, home: str) -> tuple[Cell, ...]:
    session = listed.view
    left = "–" if session.expires is None else age(session.expires - now)
    return (
        cell(session.id),
        cell(session.state, _STYLES.get(session.state, "")),
        cell("own" if listed.own else "shared"),
        cell(session.label),
        cell(_short(session.policy, home)),
        cell(age(now - session.opened)),
        cell(left),
        cell(session.connections),
        cell(session.requests),
        cell(session.denied),
        cell(spent_words(session)),
        cell(size(session.up)),
        cell(size(session.down)),
    )


def _short(path: str, home: str) -> str:
    """The path with `~` for the home."""
    return f"~{path[len(home) :]}" if path.startswith(home.rstrip(os.sep) + os.sep) else path


def _budget(session: SessionView, budget: BudgetView) -> tuple[Cell, ...]:
    used, limit = budget_words(budget)
    style = "yellow" if budget.used >= NEARLY * budget.limit else ""
    if budget.used >= budget.limit:
        style = "red"
    return cell(session.id), cell(budget.name), cell(used, style), cell(limit)


def _grant(session: SessionView, grant: GrantView, now: float) -> tuple[Cell, ...]:
    return cell(session.id), cell(grant.host), cell(grant.uses), cell(age(grant.expires - now))
