"""A gateway with two workers, against one with a single worker: requests a second, and their cost.

Both have five hundred sessions, of which fifty ask at a time. Clients and the origin need cores
too, and a machine with two has none left for a second worker. So the kernel gives each worker the
same small share of a core (a control group with a quota): then the workers are what bounds the
rate, and the rate is the one that clients see. The cost is the processor time of the workers and of
the control process for a request.
"""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.players.daemon import Daemon
from benchmarks.players.peer import Peer, cores
from benchmarks.players.surroundings import surround
from benchmarks.rounds import Row, interleave, sample
from benchmarks.sessions import ACTIVE, ROUNDS, SESSIONS, load

if TYPE_CHECKING:
    from collections.abc import Callable

RATE_AT_LEAST, COST_AT_MOST = 1.7, 1.2

PERIOD, QUOTA = 20_000, 1_600
"""Microseconds: each worker has 8 % of a core. Clients and the origin need about as much for each
worker, and the machine may be busy with other things."""

_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
"""Of cgroup v1, and of v2."""


class SmallShare:
    """A control group in which one process has a share of a core."""

    def __init__(self, pid: int) -> None:
        v1, v2 = _GROUPS
        unified = not v1.is_dir()
        self._path = (v2 if unified else v1) / f"keyhole-bench-{pid}"
        self._path.mkdir()
        if unified:
            (self._path / "cpu.max").write_text(f"{QUOTA} {PERIOD}")
        else:
            (self._path / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self._path / "cpu.cfs_quota_us").write_text(str(QUOTA))
        (self._path / "cgroup.procs").write_text(str(pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            (self._path.parent / "cgroup.procs").write_text(
                (self._path / "cgroup.procs").read_text().strip()
            )
        with contextlib.suppress(OSError):
            self._path.rmdir()


def measure() -> list[Row]:
    """Requests a second and CPU of each, of both gateways in turns."""
    title = f"requests a second, {ACTIVE} of {SESSIONS} sessions active, 2 workers against 1"
    one_core, other_core = cores()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
        desk = Path(directory)
        port, authority, tenants = surround(stack, desk, one_core, other_core)
        gateways = {
            count: stack.enter_context(Daemon(desk / str(count), None, port, authority, count))
            for count in (1, 2)
        }
        for count, gateway in gateways.items():
            for number in range(SESSIONS):
                gateway.open(tenants, (count - 1) * SESSIONS + number)
        try:
            for gateway in gateways.values():
                for pid in gateway.workers:
                    stack.enter_context(SmallShare(pid))
        except OSError as error:
            why = f"no control group with a quota: {error.strerror}"
            return [Row(title, why, at_least=RATE_AT_LEAST)]
        return _compare(title, tenants, gateways)


def _compare(title: str, tenants: Peer, gateways: dict[int, Daemon]) -> list[Row]:
    rates: dict[str, list[float]] = {}
    subjects: dict[str, Callable[[], float]] = {}
    for count, gateway in gateways.items():
        first = (count - 1) * SESSIONS
        # In a row: sessions that follow one another are with different workers.
        active = list(range(first, first + ACTIVE))
        name = str(count)
        rates[name] = []

        def run(gateway: Daemon = gateway, active: list[int] = active, name: str = name) -> float:
            used, rate = load(tenants, gateway, active, 1)
            rates[name].append(rate)
            return used

        subjects[name] = run
    cost = interleave(subjects, ROUNDS)
    pace = {name: sample(taken) for name, taken in rates.items()}
    return [
        Row(
            title,
            pace["2"].shown("/s", 1),
            pace["2"].median / pace["1"].median,
            at_least=RATE_AT_LEAST,
        ),
        Row("  one worker", pace["1"].shown("/s", 1)),
        Row(
            "CPU for a request, 2 workers against 1",
            cost["2"].shown("µs", 1e6),
            cost["2"].median / cost["1"].median,
            COST_AT_MOST,
        ),
        Row("  one worker", cost["1"].shown("µs", 1e6)),
    ]
