"""`keyhole stop ID…`: ends sessions and their sandboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asking import asking, for_each

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """End each of them."""
    with asking() as client:
        return for_each(client, options.ids, client.stop_session, "ended")
