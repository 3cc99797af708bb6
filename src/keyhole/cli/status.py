"""`keyhole status`: shows whether a gateway is up, what it serves, and how it is hardened."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.amounts import age, moment
from keyhole.cli.errors import CliError
from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag, add_watch_flag
from keyhole.cli.gateway_client import failure, open_gateway_client
from keyhole.cli.paint import json_text, print_json
from keyhole.cli.tables import WATCH_SECONDS, Cell, Column, Fit, Grid, cell, show, watch
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.client import ControlClient
    from keyhole.control.values import Status

_NOT_ADMITTING = "no: the audit log cannot be written, so new connections are refused"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_watch_flag(parser)
    parser.add_argument("--metrics", action="store_true", help="counters, for Prometheus")
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Return 0 when a gateway is up and admits connections, otherwise 1."""
    if options.metrics and (options.json or options.watch):
        raise CliError("--metrics is for Prometheus: it goes with neither --json nor --watch")
    with open_gateway_client() as client:
        if options.metrics:
            text = client.metrics()
            if sys.stdout.isatty():  # a label may hold text that a sandbox chose (I8)
                text = "\n".join(map(visible, text.split("\n")))
            print(text, end="")
            return EXIT_OK
        if options.watch:
            _watch(client, as_json=options.json)
        return _show(client, as_json=options.json)


def _show(client: ControlClient, *, as_json: bool) -> int:
    try:
        status = client.status()
    except NoGateway as error:
        if as_json:
            print_json(status_json(None))
        else:
            print(error)
        return EXIT_DENIED
    if as_json:
        print_json(status_json(status))
    else:
        show(_grids(status))
    return EXIT_OK if status.admitting else EXIT_DENIED


def _watch(client: ControlClient, *, as_json: bool) -> None:
    def look() -> tuple[Grid, ...]:
        try:
            return _grids(client.status())
        except ControlFailed as error:
            # The gateway may come back.
            return (Grid((), (), failure(error)),)

    while as_json:
        try:
            status: Status | None = client.status()
        except NoGateway:
            status = None
        print(json_text(status_json(status)), flush=True)
        time.sleep(WATCH_SECONDS)
    watch(look)


def status_json(status: Status | None) -> dict[str, object]:
    """The status for `--json`; `running` alone without a gateway."""
    if status is None:
        return {"running": False}
    return {
        "running": True,
        "version": status.version,
        "pid": status.pid,
        "data_plane": status.data_plane,
        "since": moment(status.since),
        "sessions": status.sessions,
        "frozen": status.frozen,
        "workers": [
            {
                "id": each.number,
                "pid": each.pid,
                "responds": each.responds,
                "sessions": each.sessions,
                "connections": each.connections,
            }
            for each in status.workers
        ],
        "connections": status.connections,
        "admitting": status.admitting,
        "protections": [
            {"id": each.name, "on": each.on, "note": each.note or None}
            for each in status.protections
        ],
    }


def _workers(status: Status) -> Cell:
    """Each worker's process and sessions, in one line."""
    words = ", ".join(
        f"process {each.pid} with {each.sessions}" + ("" if each.responds else " (silent)")
        for each in status.workers
    )
    silent = not all(each.responds for each in status.workers)
    return cell(f"{len(status.workers)}: {words} sessions", "red" if silent else "")


def _grids(status: Status) -> tuple[Grid, ...]:
    since = datetime.fromtimestamp(status.since).strftime("%Y-%m-%d %H:%M:%S")
    admits = cell("yes", "green") if status.admitting else cell(_NOT_ADMITTING, "red")
    sessions = cell(status.sessions)
    if status.frozen:
        sessions = cell(f"{status.sessions}, {status.frozen} frozen: see `keyhole ps`", "red")
    rows: list[tuple[Cell, ...]] = [
        (cell("gateway"), cell(f"process {status.pid}, version {status.version}")),
        (cell("data plane"), cell(f"process {status.data_plane}"))
        if len(status.workers) < 2
        else (cell("workers"), _workers(status)),
        (cell("up"), cell(f"{age(time.time() - status.since)}, since {since}")),
        (cell("sessions"), sessions),
        (cell("connections"), cell(status.connections)),
        (cell("admits"), admits),
    ]
    facts = Grid((Column(""), Column("", Fit.WRAPPED)), tuple(rows))
    if not status.protections:
        return (facts,)
    protections = Grid(
        (Column("PROTECTION"), Column("HOLDS"), Column("", Fit.WRAPPED)),
        tuple(
            (
                cell(each.name),
                cell("yes", "green") if each.on else cell("no", "yellow"),
                cell(each.note),
            )
            for each in status.protections
        ),
    )
    return facts, protections
