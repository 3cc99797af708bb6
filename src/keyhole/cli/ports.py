"""`keyhole ports`: lists the ports that sandboxes publish and the ports of this host that they
use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import find_gateways
from keyhole.cli.paint import print_json
from keyhole.cli.tables import Column, Fit, Grid, cell, show
from keyhole.control.client import ControlFailed, NoGateway
from keyhole.control.endpoints import ask_all
from keyhole.control.values import PortDirection

if TYPE_CHECKING:
    import argparse

    from keyhole.control.values import PortView, SessionView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Print the list."""
    found = [(session, port) for session in _sessions() for port in session.ports]
    if options.json:
        print_json([_as_json(*each) for each in found])
        return EXIT_OK
    rows = tuple(
        (
            cell(_open_as(session, port)),
            cell(_leads_to(port)),
            cell(session.id),
            cell(session.label),
        )
        for session, port in found
    )
    show([Grid(_COLUMNS, rows, "" if rows else "no sandbox publishes a port or uses one")])
    return EXIT_OK


_COLUMNS = (
    Column("OPEN", Fit.WHOLE),
    Column("LEADS TO", Fit.WRAPPED),
    Column("SESSION"),
    Column("PROGRAM", Fit.CUT),
)


def _sessions() -> list[SessionView]:
    """All sessions. A gateway that cannot be asked hides no other."""
    sessions: list[SessionView] = []
    failed: ControlFailed | None = None
    with find_gateways() as endpoints:
        for _, found in ask_all(endpoints, lambda each: each.sessions()):
            if isinstance(found, ControlFailed):
                failed = None if isinstance(found, NoGateway) else found
            else:
                sessions += found
        if failed is not None and not sessions:
            raise failed
    return sessions


def _open_as(session: SessionView, port: PortView) -> str:
    if port.direction is PortDirection.IN:
        return f"http://{session.id}.localhost:{port.outer}/"
    return f"localhost:{port.inner} inside"


def _leads_to(port: PortView) -> str:
    if port.direction is PortDirection.IN:
        return f"port {port.inner} inside"
    return f"port {port.outer} of this host"


def _as_json(session: SessionView, port: PortView) -> dict[str, object]:
    published = port.direction is PortDirection.IN
    return {
        "id": f"{session.id}:{port.outer}",
        "direction": port.direction,
        "outer": port.outer,
        "inner": port.inner,
        "url": _open_as(session, port) if published else None,
        "session": session.id,
        "label": session.label,
    }
