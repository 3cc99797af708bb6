"""This checkout's gateway against an older one's, in the same run: `make bench AGAINST=/path`.

The older checkout needs a `.venv` of its own (`scripts/setup` there). Both gateways get the same
client and the same origin, in turns; the processor time of each is compared, by the work done.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.intercept import Run, asked, compare
from benchmarks.players.httporigin import BULK
from benchmarks.rounds import Row
from benchmarks.ways import checkouts, is_missing

AT_LEAST = 0.95
CONNECTIONS, TIMES = 32, 60
ROUNDS, BULK_ROUNDS = 15, 9

VARIABLE = "AGAINST"


def measure(checkout: Path | None = None) -> list[Row]:
    """Requests and bulk, by the processor time of each gateway."""
    named = os.environ.get(VARIABLE, "")
    older = checkout or (Path(named) if named else None)
    if older is None:
        is_missing(f"no older checkout is named: make bench {VARIABLE}=/path/to/checkout")
        return []
    with checkouts(older) as ways:
        rows = []
        for what, run, rounds in (
            (f"requests at {CONNECTIONS} connections", _requests(), ROUNDS),
            ("download", asked("download", BULK / (1 << 30)), BULK_ROUNDS),
            ("upload", asked("upload", BULK / (1 << 30)), BULK_ROUNDS),
        ):
            cost = compare(ways, run, rounds)
            ratio = cost.per_cpu_second("older")
            figure = cost.cpu["keyhole"].shown("µs", 1e6) + " CPU"
            rows.append(Row(f"{what}, against the older", figure, ratio, at_least=AT_LEAST))
        return rows


def _requests() -> Run:
    return asked("requests", CONNECTIONS * TIMES, connections=CONNECTIONS, rounds=TIMES)


if __name__ == "__main__":
    for row in measure(Path(sys.argv[1])):
        print(row)
