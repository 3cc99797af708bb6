"""`keyhole health`: whether sandboxes can work now, or what they lack; engines ask it, too.

Unlike `keyhole status` it has the gateway look: at the door that it expects, and, by dialling, at
the hosts that sandboxes may reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asking import asking
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.control.client import NoGateway
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.values import Health


def run(options: argparse.Namespace) -> int:
    """0 when nothing is lacking, 1 when something is or no gateway is up."""
    with asking() as client:
        try:
            health = client.health()
        except NoGateway as error:
            if options.json:
                print_json({"healthy": False, "checks": []})
            else:
                print(error)
            return EXIT_DENIED
    if options.json:
        print_json(health_json(health))
    else:
        for each in health.checks:
            mark = paint("ok", "green") if each.on else paint("no", "red")
            print(
                f"{mark}  {visible(each.name)}" + (f": {visible(each.note)}" if each.note else "")
            )
    return EXIT_OK if health.healthy else EXIT_DENIED


def health_json(health: Health) -> dict[str, object]:
    """For scripts."""
    return {
        "healthy": health.healthy,
        "checks": [
            {"id": each.name, "on": each.on, "note": each.note or None} for each in health.checks
        ],
    }
