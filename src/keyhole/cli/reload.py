"""`keyhole reload`: has the gateway read all policies again, and says what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.cli.asking import asking
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import columns, paint, print_json
from keyhole.control.values import Outcome
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse

    from keyhole.control.values import PolicyReload


def run(options: argparse.Namespace) -> int:
    """1 when a policy was not taken over and the old one stays."""
    with asking() as client:
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
    kept = any(each.outcome is Outcome.KEPT for each in policies)
    return EXIT_DENIED if kept else EXIT_OK


def _row(policy: PolicyReload) -> tuple[str, ...]:
    path = visible(policy.path)
    if policy.outcome is Outcome.KEPT:
        # Padded by hand: colour has no width.
        word = paint("kept", "yellow") + " " * (len(Outcome.UNCHANGED) - len("kept"))
        return word, f"{path}: the old one stays: {visible(policy.why)}"
    return policy.outcome.ljust(len(Outcome.UNCHANGED)), path
