"""`keyhole doctor`: proves on this host that each wall stands, and which clients trust the CA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.app.doctor import CLIENTS, Finding, examine_engine, examine_host
from keyhole.cli.main import EXIT_DENIED, EXIT_OK
from keyhole.cli.paint import paint, print_json
from keyhole.cli.parser import CliError
from keyhole.cli.setting import environment, find_places
from keyhole.model.text import visible

if TYPE_CHECKING:
    import argparse


def run(options: argparse.Namespace) -> int:
    """Examine, and print a row for each thing that was tried."""
    contained = options.runtime != "bwrap"
    if options.image and not contained:
        raise CliError("--image is for containers: add --runtime docker")
    if contained:
        image = options.image or ""
        findings = examine_engine(find_places(), environment(), options.runtime, image)
    else:
        findings = examine_host(find_places(), environment())
    failing = [finding for finding in findings if finding.vital and not finding.held]
    code = EXIT_DENIED if failing else EXIT_OK
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
        return code
    width = max(len(finding.id) for finding in findings)
    for finding in findings:
        mark = _mark(finding)
        control = paint(f"  {visible(finding.control)}", "dim") if finding.control else ""
        print(f"{mark} {finding.id.ljust(width)}  {visible(finding.seen)}{control}")
        if finding.advice:
            print(f"       {visible(finding.advice)}")
    print(_verdict(failing))
    return code


def _mark(finding: Finding) -> str:
    if finding.held:
        return paint("holds ", "green")
    return paint("FAILS ", "red") if finding.vital else paint("warns ", "yellow")


def _verdict(failing: list[Finding]) -> str:
    if not failing:
        return "every wall stands"
    if all(finding.id.startswith(CLIENTS) for finding in failing):
        return "every wall stands, but clients inside cannot use a service: see the rows above"
    return "a sandbox on this host does not hold: nothing runs"
