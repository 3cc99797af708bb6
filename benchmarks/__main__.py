"""Runs every measurement and says which kept its bound; exits 1 when one did not."""

from __future__ import annotations

import platform
import sys

from benchmarks import audit, containers, git, intercept, policy, sandbox, sessions, startup, tunnel


def main() -> int:
    """Measure, print, judge."""
    kept, unmeasured = True, 0
    # A build without optimisation costs a quarter of the requests per second.
    print(f"Python {platform.python_version()} of {sys.base_prefix}")
    for title, measure in (
        ("Policy decisions", policy.measure),
        ("Start-up", startup.measure),
        ("Audit log", audit.measure),
        ("Tunnel, against HAProxy in TCP mode", tunnel.measure),
        ("Intercepted traffic, against Envoy and mitmproxy", intercept.measure),
        ("git, against the same server directly", git.measure),
        ("A sandbox's start", sandbox.measure_start),
        ("A container's start, against docker run", containers.measure_start),
        ("A container's traffic, against Envoy on the bridge", containers.measure_traffic),
        ("Two hundred sandboxes on one gateway", sandbox.measure_many),
        ("Five hundred sessions on a gateway that stays up", sessions.measure),
    ):
        print(f"\n{title}")
        for row in measure():
            print(f"  {row}")
            kept &= row.kept
            unmeasured += not row.measured
    if unmeasured:
        print(f"\n{unmeasured} bounds were not measured; what is missing is said above")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
