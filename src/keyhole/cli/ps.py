"""`keyhole ps`: lists named sandboxes and all sessions, with their counters, budgets and grants.

Sessions are those of the gateway and of runs that have their own.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from keyhole.app.containers.named_sandbox import list_sandboxes
from keyhole.cli.amounts import moment
from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag, add_watch_flag
from keyhole.cli.gateway_client import failure, find_gateways
from keyhole.cli.paint import json_text, print_json
from keyhole.cli.sandbox_rows import SandboxRow
from keyhole.cli.session_table import ListedSession, grids
from keyhole.cli.tables import WATCH_SECONDS, Grid, show, watch
from keyhole.cli.verb_context import find_host_paths
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.endpoints import ask_all
from keyhole.model.errors import KeyholeError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from keyhole.control.endpoints import ControlEndpoint
    from keyhole.control.values import SessionView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_watch_flag(parser)
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the list, once or again and again."""
    if options.watch:
        _watch(as_json=options.json)
    with find_gateways() as endpoints:
        sessions, named = _look(endpoints)
    if options.json:
        print_json(_listed(sessions, named))
    else:
        show(grids(sessions, named))
    return EXIT_OK


def _look(endpoints: Sequence[ControlEndpoint]) -> tuple[list[ListedSession], list[SandboxRow]]:
    """All sessions and named sandboxes. All endpoints are asked at the same time.

    Raises ControlFailed only if no session was found: a gateway that cannot be asked must not hide
    the runs beside it.
    """
    named = [SandboxRow.of(each) for each in list_sandboxes(find_host_paths().sandboxes)]
    sessions: list[ListedSession] = []
    failed: ControlFailed | None = None
    for endpoint, found in ask_all(endpoints, lambda each: each.sessions()):
        if isinstance(found, NoGateway):
            continue
        if isinstance(found, ControlFailed):
            failed = found
            continue
        sessions += [ListedSession(each, own=endpoint.run is not None) for each in found]
    if failed is not None:
        if not sessions:
            raise failed
        print(f"keyhole: the gateway is not listed: {failure(failed)}", file=sys.stderr)
    views = [each.view for each in sessions]
    return sessions, [each.at(views) for each in named]


def _watch(*, as_json: bool) -> None:
    def look() -> tuple[Grid, ...]:
        try:
            with find_gateways() as endpoints:
                return grids(*_look(endpoints))
        except KeyholeError as error:
            return (Grid((), (), str(error)),)

    while as_json:
        with find_gateways() as endpoints:
            print(json_text(_listed(*_look(endpoints))), flush=True)
        time.sleep(WATCH_SECONDS)
    watch(look)


def _listed(
    sessions: Sequence[ListedSession], named: Sequence[SandboxRow]
) -> list[dict[str, object]]:
    """All sessions, named or not; then the named sandboxes that have no session here."""
    names = {each.session: each for each in named if each.session}
    rows = []
    for each in sessions:
        row = session_json(each.view) | {"own_gateway": each.own, "name": None}
        sandbox = names.get(each.view.id)
        if sandbox is not None:
            # A shared gateway knows more of the session than the sandbox's record does.
            row |= sandbox.as_json() if each.own else {"name": sandbox.name}
        rows.append(row)
    shown = {each.view.id for each in sessions}
    return rows + [each.as_json() for each in named if each.session not in shown]


def session_json(session: SessionView) -> dict[str, object]:
    """The session for `--json`: names as in docs/control-api.md, times as in the audit log."""
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
        "spent_nano_usd": session.spent,
        "unpriced_tokens": session.unpriced,
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
        "ports": [
            {"direction": each.direction, "outer": each.outer, "inner": each.inner}
            for each in session.ports
        ],
        "worker": session.worker or None,
    }
