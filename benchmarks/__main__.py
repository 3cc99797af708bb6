"""Runs every measurement and says which kept its bound; exits 1 when one did not."""

from __future__ import annotations

import sys

from benchmarks import audit, policy, startup


def main() -> int:
    """Measure, print, judge."""
    kept = True
    for title, measure in (
        ("Policy decisions", policy.measure),
        ("Start-up", startup.measure),
        ("Audit log", audit.measure),
    ):
        print(f"\n{title}")
        for row in measure():
            print(f"  {row}")
            kept &= row.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
