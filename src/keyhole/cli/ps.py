"""`keyhole ps`: sandboxes that have a name, and all sessions, those of the gateway and of runs that
have their own: what they have done, and what is left to them."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from keyhole.app.named import every
from keyhole.cli.amounts import age, moment, size
from keyhole.cli.asking import asking_all, failure
from keyhole.cli.main import EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.parser import CliError
from keyhole.cli.sandboxes import Sandbox
from keyhole.cli.setting import find_places
from keyhole.cli.tables import WATCH_SECONDS, Cell, Column, Fit, Grid, cell, show, watch
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.endpoints import ask_all
from keyhole.control.values import State
from keyhole.model.value import dataclass

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keyhole.control.endpoints import Endpoint
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


@dataclass(frozen=True, slots=True)
class Listed:
    """A session, and whether it has a gateway of its own."""

    view: SessionView
    own: bool


def run(options: argparse.Namespace) -> int:
    """List them."""
    if options.watch:
        _watch(as_json=options.json)
    with asking_all() as endpoints:
        sessions, named = _look(endpoints)
    if options.json:
        print_json(_listed(sessions, named))
    else:
        show(_grids(sessions, named))
    return EXIT_OK


def _look(endpoints: Sequence[Endpoint]) -> tuple[list[Listed], list[Sandbox]]:
    """What there is. All endpoints are asked at the same time.

    Raises ControlFailed where there is nothing else to show: a gateway that cannot be asked does
    not hide the runs beside it.
    """
    named = [Sandbox.of(each) for each in every(find_places().sandboxes)]
    sessions: list[Listed] = []
    failed: ControlFailed | None = None
    for endpoint, found in ask_all(endpoints, lambda each: each.sessions()):
        if isinstance(found, NoGateway):
            continue
        if isinstance(found, ControlFailed):
            failed = found
            continue
        sessions += [Listed(each, own=endpoint.run is not None) for each in found]
    if failed is not None:
        if not sessions:
            raise failed
        print(f"keyhole: the gateway is not listed: {failure(failed)}", file=sys.stderr)
    views = [each.view for each in sessions]
    return sessions, [each.at(views) for each in named]


def _watch(*, as_json: bool) -> None:
    def look() -> tuple[Grid, ...]:
        try:
            with asking_all() as endpoints:
                return _grids(*_look(endpoints))
        except CliError as error:
            return (Grid((), (), str(error)),)

    while as_json:
        with asking_all() as endpoints:
            print(json.dumps(_listed(*_look(endpoints)), ensure_ascii=False), flush=True)
        time.sleep(WATCH_SECONDS)
    watch(look)


def _listed(sessions: Sequence[Listed], named: Sequence[Sandbox]) -> list[dict[str, object]]:
    """Sessions, with the names of those that have one; then sandboxes that are no session here."""
    names = {each.session: each for each in named if each.session}
    rows = []
    for each in sessions:
        row = session_json(each.view) | {"own_gateway": each.own, "name": None}
        sandbox = names.get(each.view.id)
        if sandbox is not None:
            # Of its own run a sandbox knows as much; a shared gateway knows more.
            row |= sandbox.as_json() if each.own else {"name": sandbox.name}
        rows.append(row)
    shown = {each.view.id for each in sessions}
    return rows + [each.as_json() for each in named if each.session not in shown]


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
    Column("GATEWAY"),
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


def _grids(listed: Sequence[Listed], named: Sequence[Sandbox]) -> tuple[Grid, ...]:
    home = str(find_places().home)
    boxes = (Grid(_SANDBOXES, tuple(_sandbox(each, home) for each in named)),) if named else ()
    if not listed and boxes:
        return boxes
    if not listed:
        return (Grid((), (), "no session is open; `keyhole run -- CMD` opens one"),)
    now = time.time()
    # The oldest first; ids tell nothing.
    listed = sorted(listed, key=lambda each: each.view.opened)
    sessions = [each.view for each in listed]
    grids = (
        Grid(_COLUMNS, tuple(_row(each, now, home) for each in listed)),
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


def _row(listed: Listed, now: float, home: str) -> tuple[Cell, ...]:
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
