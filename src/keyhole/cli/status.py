"""`keyhole status`: whether a gateway is up, what it serves, and how it is hardened."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

from keyhole.cli.amounts import age, moment
from keyhole.cli.asking import asking, failure
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import print_json
from keyhole.cli.parser import CliError
from keyhole.cli.tables import WATCH_SECONDS, Cell, Column, Fit, Grid, cell, show, watch
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.client import Client
    from keyhole.control.values import Status

_NOT_ADMITTING = "no: the audit log cannot be written, so nothing new is let in"


def run(options: argparse.Namespace) -> int:
    """0 when a gateway is up and admits; 1 when there is none, or it admits nothing."""
    if options.metrics and (options.json or options.watch):
        raise CliError("--metrics is for Prometheus: it goes with neither --json nor --watch")
    with asking() as client:
        if options.metrics:
            text = client.metrics()
            if sys.stdout.isatty():  # a label may hold what somebody else chose (I8)
                text = "\n".join(map(visible, text.split("\n")))
            print(text, end="")
            return EXIT_OK
        if options.watch:
            _watch(client, as_json=options.json)
        return _show(client, as_json=options.json)


def _show(client: Client, *, as_json: bool) -> int:
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


def _watch(client: Client, *, as_json: bool) -> None:
    def look() -> tuple[Grid, ...]:
        try:
            return _grids(client.status())
        except ControlFailed as error:
            # It may come back.
            return (Grid((), (), failure(error)),)

    while as_json:
        try:
            status: Status | None = client.status()
        except NoGateway:
            status = None
        print(json.dumps(status_json(status), ensure_ascii=False), flush=True)
        time.sleep(WATCH_SECONDS)
    watch(look)


def status_json(status: Status | None) -> dict[str, object]:
    """For scripts; `running` alone where there is no gateway."""
    if status is None:
        return {"running": False}
    return {
        "running": True,
        "version": status.version,
        "pid": status.pid,
        "data_plane": status.data_plane,
        "since": moment(status.since),
        "sessions": status.sessions,
        "connections": status.connections,
        "admitting": status.admitting,
        "protections": [
            {"id": each.name, "on": each.on, "note": each.note or None}
            for each in status.protections
        ],
    }


def _grids(status: Status) -> tuple[Grid, ...]:
    since = datetime.fromtimestamp(status.since).strftime("%Y-%m-%d %H:%M:%S")
    admits = cell("yes", "green") if status.admitting else cell(_NOT_ADMITTING, "red")
    rows: list[tuple[Cell, ...]] = [
        (cell("gateway"), cell(f"process {status.pid}, version {status.version}")),
        (cell("data plane"), cell(f"process {status.data_plane}")),
        (cell("up"), cell(f"{age(time.time() - status.since)}, since {since}")),
        (cell("sessions"), cell(status.sessions)),
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
