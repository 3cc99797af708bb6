"""`keyhole reload`: makes the gateway read all policies again, and prints the outcome of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.exit_codes import EXIT_DENIED, EXIT_OK
from keyhole.cli.flags import add_json_flag
from keyhole.cli.gateway_client import open_gateway_client
from keyhole.cli.paint import columns, paint, print_json
from keyhole.control.values import ReloadOutcome
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.values import PolicyReload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_flag(parser)


def run(options: argparse.Namespace) -> int:
    """Return 1 when a policy was not taken over, so that the old one stays in force."""
    with open_gateway_client() as client:
        policies = client.reload().policies
    if options.json:
        print_json(
            [
                {
                    "id": each.path,
                    "outcome": each.outcome,
                    "why": each.why or None,
                }
                for each in policies
            ]
        )
    elif not policies:
        print("no session is open, so no policy is in use")
    else:
        print("\n".join(columns([_row(each) for each in policies], indent="")))
    kept = any(each.outcome is ReloadOutcome.KEPT for each in policies)
    return EXIT_DENIED if kept else EXIT_OK


def _row(policy: PolicyReload) -> tuple[str, ...]:
    path = visible(policy.path)
    if policy.outcome is ReloadOutcome.KEPT:
        # Padded by hand: escape codes take no width.
        word = paint("kept", "yellow") + " " * (len(ReloadOutcome.UNCHANGED) - len("kept"))
        return word, f"{path}: the old one stays: {visible(policy.why)}"
    return policy.outcome.ljust(len(ReloadOutcome.UNCHANGED)), path
