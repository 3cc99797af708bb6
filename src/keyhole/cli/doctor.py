"""`keyhole doctor`: proves from inside a sandbox, on this host, that each wall stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.doctor import examine_host
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.cli.setting import environment, find_places
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Examine, and print a row for each thing that was tried."""
    findings = examine_host(find_places(), environment())
    whole = all(finding.held for finding in findings)
    if options.json:
        print_json(
            [
                {
                    "id": f.id,
                    "held": f.held,
                    "seen": f.seen,
                    "control": f.control,
                    "advice": f.advice,
                }
                for f in findings
            ]
        )
        return EXIT_OK if whole else EXIT_DENIED
    width = max(len(finding.id) for finding in findings)
    for finding in findings:
        mark = paint("holds ", "green") if finding.held else paint("FAILS ", "red")
        control = paint(f"  {visible(finding.control)}", "dim") if finding.control else ""
        print(f"{mark} {finding.id.ljust(width)}  {visible(finding.seen)}{control}")
        if finding.advice:
            print(f"       {visible(finding.advice)}")
    print("every wall stands" if whole else "a sandbox on this host does not hold: nothing runs")
    return EXIT_OK if whole else EXIT_DENIED
