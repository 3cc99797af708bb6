"""Runs every measurement and says which kept its bound; exits 1 when one did not.

`--write FILE` also writes the results into a document; `make bench` writes docs/performance.md.
`--only NAME` measures a part, by the name of its module.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    against,
    agents,
    audit,
    bodies,
    containers,
    git,
    http2,
    intercept,
    policy,
    ports,
    report,
    sandbox,
    sessions,
    startup,
    tunnel,
    watched,
    workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.rounds import Row

MEASUREMENTS: tuple[tuple[str, Callable[[], list[Row]]], ...] = (
    ("Policy decisions", policy.measure),
    ("Start-up", startup.measure),
    ("Audit log", audit.measure),
    ("Tunnel, against HAProxy in TCP mode", tunnel.measure),
    ("Intercepted traffic, against Envoy and mitmproxy", intercept.measure),
    ("Intercepted HTTP/2, against Envoy and mitmproxy", http2.measure),
    ("Intercepted traffic, against an older checkout", against.measure),
    ("Judged bodies, against the same bodies passed on", bodies.measure),
    ("git, against the same server directly", git.measure),
    ("A sandbox's start", sandbox.measure_start),
    ("An agent's start, against the agent alone", agents.measure),
    ("A published port, against loopback", ports.measure),
    ("A container's start, against docker run", containers.measure_start),
    ("A container's traffic, against Envoy on the bridge", containers.measure_traffic),
    ("Two hundred sandboxes on one gateway", sandbox.measure_many),
    ("Five hundred sessions on a gateway that stays up", sessions.measure),
    ("A thousand questions and a person who watches, against none", watched.measure),
    ("Two workers, against one", workers.measure),
)


def main() -> int:
    """Measure, print, judge, and write where that is asked for."""
    options = _options()
    kept, unmeasured, sections = True, 0, []
    # A build without optimisation costs a quarter of the requests per second.
    print(f"Python {platform.python_version()} of {sys.base_prefix}")
    for title, measure in MEASUREMENTS:
        if options.only and measure.__module__.rpartition(".")[2] not in options.only:
            sections.append(report.Section(title, ()))
            continue
        print(f"\n{title}")
        rows = measure()
        for row in rows:
            print(f"  {row}")
            kept &= row.kept
            unmeasured += not row.measured
        sections.append(report.Section(title, rows))
    if unmeasured:
        print(f"\n{unmeasured} bounds were not measured; what is missing is said above")
    if options.write:
        report.write(options.write, report.block(report.Machine.this(), sections))
        print(f"\nwrote {options.write}")
    return 0 if kept else 1


def _options() -> argparse.Namespace:
    names = sorted({measure.__module__.rpartition(".")[2] for _, measure in MEASUREMENTS})
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the results into FILE")
    parser.add_argument("--only", action="append", choices=names, help="measure this part alone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
