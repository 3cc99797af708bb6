"""`keyhole ps`: sandboxes that have a name, and the sessions of the gateway: what they have done,
and what is left to them."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from keyhole.app.named import every
from keyhole.cli.amounts import age, moment, size
from keyhole.cli.asking import asking, failure
from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.sandboxes import Sandbox
from keyhole.cli.setting import find_places
from keyhole.cli.tables import WATCH_SECONDS, Cell, Column, Fit, Grid, cell, show, watch
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.values import State

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keyhole.control.client import Client
    from keyhole.control.values import BudgetView, GrantView, SessionView

_STYLES = {
    State.OPEN: "green",
    State.REVOKED: "red",
    State.SILENT: "red",
    State.PREPARED: "yellow",
}

_NAMED_STYLES = {"running": "green", "closed": "red", "starting": "yellow"}

_IN_BYTES = ("upload", "download")

NEARLY = 0.8
"""Of a budget: from here on it is coloured."""


def run(options: argparse.Namespace) -> int:
    """List them."""
    with asking() as client:
        if options.watch:
            _watch(client, as_json=options.json)
        sessions, named = _look(client)
    if options.json:
        print_json(_listed(sessions, named))
    else:
        show(_grids(sessions, named))
    return EXIT_OK


def _look(client: Client) -> tuple[Sequence[SessionView], list[Sandbox]]:
    """What there is. Without a gateway there are no sessions, which is a failure where nothing
    has a name either."""
    found = [Sandbox.of(each) for each in every(find_places().sandboxes)]
    try:
        sessions = client.sessions()
    except NoGateway:
        if not found:
            raise
        sessions = []
    return sessions, [each.at(sessions) for each in found]


def _watch(client: Client, *, as_json: bool) -> None:
    def look() -> tuple[Grid, ...]:
        try:
            return _grids(*_look(client))
        except ControlFailed as error:
            return (Grid((), (), failure(error)),)

    while as_json:
        print(json.dumps(_listed(*_look(client)), ensure_ascii=False), flush=True)
        time.sleep(WATCH_SECONDS)
    watch(look)


def _listed(sessions: Sequence[SessionView], named: Sequence[Sandbox]) -> list[dict[str, object]]:
    """Sessions, with the names of those that have one; then sandboxes that are no session here."""
    names = {each.session: each for each in named if each.session}
    own = [session_json(each) for each in sessions]
    for each in own:
        sandbox = names.pop(str(each["id"]), None)
        each |= {"name": sandbox.name if sandbox else None}
    shown = {str(each["id"]) for each in own}
    return own + [each.as_json() for each in named if each.session not in shown]


def session_json(session: SessionView) -> dict[str, object]:
    """For scripts; names are those of docs/control-api.md, times those of the audit log."""
    return {
        "id": session.id,
        "state": session.state,
        "label": session.label,
        "policy": session.policy,
        "pid": session.pid,
        "opened": moment(session.opened),
        "expires": None if session.expires is None else moment(session.expires),
        "connections": session.connections,
        "requests": session.requests,
        "denied": session.denied,
        "up": session.up,
        "down": session.down,
        "stored": list(session.stored),
        "secrets": list(session.secrets),
        "grants": [
            {"id": each.host, "expires": moment(each.expires), "uses": each.uses}
            for each in session.grants
        ],
        "budgets": [
            {"id": each.name, "used": each.used, "limit": each.limit} for each in session.budgets
        ],
    }


# ── the table ─────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = (
    Column("ID"),
    Column("STATE"),
    Column("PROGRAM", Fit.CUT),
    Column("POLICY", Fit.CUT, needs=110),
    Column("AGE", right=True),
    Column("ENDS IN", right=True, needs=90),
    Column("CONNS", right=True),
    Column("ALLOWED", right=True),
    Column("DENIED", right=True),
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


def _grids(sessions: Sequence[SessionView], named: Sequence[Sandbox]) -> tuple[Grid, ...]:
    home = str(find_places().home)
    boxes = (Grid(_SANDBOXES, tuple(_sandbox(each, home) for each in named)),) if named else ()
    if not sessions and boxes:
        return boxes
    if not sessions:
        return (Grid((), (), "no session is open; `keyhole run -- CMD` opens one"),)
    now = time.time()
    # The oldest first; ids tell nothing.
    sessions = sorted(sessions, key=lambda each: each.opened)
    grids = (
        Grid(_COLUMNS, tuple(_row(each, now, home) for each in sessions)),
        Grid(_BUDGETS, tuple(_budget(s, each) for s in sessions for each in s.budgets)),
        Grid(_GRANTS, tuple(_grant(s, each, now) for s in sessions for each in s.grants)),
    )
    return (*boxes, *(grid for grid in grids if grid.rows))


def _sandbox(sandbox: Sandbox, home: str) -> tuple[Cell, ...]:
    since = "–" if sandbox.since is None else age(time.time() - sandbox.since)
    return (
        cell(sandbox.name),
        cell(sandbox.state, _NAMED_STYLES.get(sandbox.state, "")),
        cell(sandbox.session or "–"),
        cell(since),
        cell(sandbox.code),
        cell(sandbox.runtime),
        cell(sandbox.image),
        cell(_short(sandbox.policy, home)),
    )


def _row(session: SessionView, now: float, home: str) -> tuple[Cell, ...]:
    left = "–" if session.expires is None else age(session.expires - now)
    return (
        cell(session.id),
        cell(session.state, _STYLES.get(session.state, "")),
        cell(session.label),
        cell(_short(session.policy, home)),
        cell(age(now - session.opened)),
        cell(left),
        cell(session.connections),
        cell(session.requests),
        cell(session.denied),
        cell(size(session.up)),
        cell(size(session.down)),
    )


def _short(path: str, home: str) -> str:
    """With `~` for the home, as people write it."""
    return f"~{path[len(home) :]}" if path.startswith(home.rstrip(os.sep) + os.sep) else path


def _budget(session: SessionView, budget: BudgetView) -> tuple[Cell, ...]:
    used, limit = str(budget.used), str(budget.limit)
    if budget.name.rpartition(".")[2] in _IN_BYTES:
        used, limit = size(budget.used), size(budget.limit)
    style = "yellow" if budget.used >= NEARLY * budget.limit else ""
    if budget.used >= budget.limit:
        style = "red"
    return cell(session.id), cell(budget.name), cell(used, style), cell(limit)


def _grant(session: SessionView, grant: GrantView, now: float) -> tuple[Cell, ...]:
    return cell(session.id), cell(grant.host), cell(grant.uses), cell(age(grant.expires - now))
