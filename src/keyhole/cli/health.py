"""`keyhole health`: says whether sandboxes can work now. Container engines call it as a check.

Unlike `keyhole status`, it makes the gateway check the door that it expects and dial the hosts that
sandboxes may reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import open_gateway_client
from keyhole.cli.paint import paint, print_json
from keyhole.control.client import NoGateway
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.values import Health


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Return 0 when every check passes, 1 when one fails or no gateway is up."""
    with open_gateway_client() as client:
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
    """The result for `--json`."""
    return {
        "healthy": health.healthy,
        "checks": [
            {"id": each.name, "on": each.on, "note": each.note or None} for each in health.checks
        ],
    }
