"""The long-lived gateway with many sessions: what a request costs there, and who is kept waiting.

Two gateways as `keyhole up` starts them, with the same policy and the same number of connections:
one with a single session that has all of them, one with five hundred, of which fifty have one each.
What is judged is the gateway's own processor time for a request. While the many are asked, the
control socket is, too.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.players.daemon import Daemon
from benchmarks.players.peer import Peer, cores, memory
from benchmarks.players.surroundings import surround
from benchmarks.rounds import Row, interleave, sample

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS, ACTIVE = 500, 50
CPU_AT_MOST = 1.5

MEDIAN_AT_MOST, P99_AT_MOST = 0.030, 0.100
"""Seconds of a control call under load. The verb that asks takes some 100 ms to start, and nobody
should notice the answer beside it. A call takes three turns of the loop, each of which serves the
fifty requests that came meanwhile: some 10 ms, with what the log's thread takes. On a host that is
busy with other things, p99 is over it."""

ROUNDS = 5
WARM_UP, WINDOW = 1.0, 3.0
"""Seconds of load before it is measured, and while it is."""

CALLS = 150
"""Control calls of each kind."""

IDLE_WINDOW = 5.0
"""Seconds in which nobody asks anything."""


def measure() -> list[Row]:
    """CPU of a request, control calls meanwhile, and what idle sessions cost."""
    proxy_core, other_core = cores()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
        desk = Path(directory)
        port, authority, tenants = surround(stack, desk, other_core, other_core)
        one, many = (
            stack.enter_context(Daemon(desk / name, proxy_core, port, authority))
            for name in ("one", "many")
        )
        one.open(tenants, 0)
        many.open(tenants, 1)
        loaded, start = memory(many.pid), time.perf_counter()
        for number in range(2, SESSIONS + 1):
            many.open(tenants, number)
        opened = (time.perf_counter() - start) / (SESSIONS - 1)
        each = (memory(many.pid) - loaded) / (SESSIONS - 1)
        active = list(range(1, SESSIONS + 1, SESSIONS // ACTIVE))
        return [
            *_requests(tenants, one, many, active),
            *_control(tenants, many, active),
            *_idle(many),
            Row("  gateway's memory for one more session", f"{each / 1024:8.1f} KiB"),
            Row("  time to open one of them", f"{opened * 1e3:8.1f} ms"),
        ]


def _requests(tenants: Peer, one: Daemon, many: Daemon, active: list[int]) -> list[Row]:
    rates: dict[str, list[float]] = {"one": [], "many": []}

    def measurer(name: str, daemon: Daemon, numbers: list[int]) -> Callable[[], float]:
        def run() -> float:
            used, rate = load(tenants, daemon, numbers, ACTIVE // len(numbers))
            rates[name].append(rate)
            return used

        return run

    found = interleave(
        {"one": measurer("one", one, [0]), "many": measurer("many", many, active)}, ROUNDS
    )
    pace = {name: sample(taken).median for name, taken in rates.items()}
    return [
        Row(
            f"CPU for a request, {ACTIVE} of {SESSIONS} sessions active, against one",
            f"{found['many'].shown('µs', 1e6)}, {pace['many']:6.0f} /s",
            found["many"].median / found["one"].median,
            CPU_AT_MOST,
        ),
        Row("  one session", f"{found['one'].shown('µs', 1e6)}, {pace['one']:6.0f} /s"),
    ]


def load(
    tenants: Peer,
    daemon: Daemon,
    numbers: list[int],
    connections: int,
    used: Callable[[Daemon], float] = lambda daemon: daemon.used()[0],
) -> tuple[float, float]:
    """The gateway's CPU-seconds for a request, and requests a second."""
    rates, (busy,) = put_under_load(tenants, numbers, connections, lambda: [used(daemon)])
    return busy / sum(rates), sum(rates)


def put_under_load(
    tenants: Peer, numbers: list[int], connections: int, used: Callable[[], list[float]]
) -> tuple[list[float], list[float]]:
    """Requests a second of each session, and CPU-seconds a second of each that `used` looks at.

    The window is the client's; the processor is looked at when it begins and ends, as far as can be
    told from outside: connections are being opened before.
    """
    served: list[tuple[float, float, list[int]]] = []

    def ask() -> None:
        served.append(
            tenants.ask(
                "load", numbers=numbers, connections=connections, warm=WARM_UP, window=WINDOW
            )
        )

    samples: list[tuple[float, list[float]]] = []
    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        samples.append((time.monotonic(), used()))
        thread.join(0.05)
    begun, ended, answered = served[0]
    inside = [(at, taken) for at, taken in samples if begun <= at <= ended]
    (first, before), (last, after) = inside[0], inside[-1]
    busy = [(now - then) / (last - first) for then, now in zip(before, after, strict=True)]
    return [each / (ended - begun) for each in answered], busy


def _control(tenants: Peer, many: Daemon, active: list[int]) -> list[Row]:
    """Asked one after the other while the load lasts."""
    client = many.client
    calls: dict[str, Callable[[], object]] = {
        "status": client.status,
        "a page of 50 sessions": lambda: client.ask("list_sessions"),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    over = threading.Event()

    def keep_busy() -> None:
        while not over.is_set():
            load(tenants, many, active, 1)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    time.sleep(WARM_UP)
    for _ in range(CALLS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    over.set()
    thread.join()
    rows = []
    for name, taken in times.items():
        median, p99 = statistics.median(taken), statistics.quantiles(taken, n=100)[98]
        for word, found, bound in (("median", median, MEDIAN_AT_MOST), ("p99", p99, P99_AT_MOST)):
            title = f"control call under load, {name}: {word}, of {bound * 1e3:.0f} ms"
            rows.append(Row(title, f"{found * 1e3:8.1f} ms", found / bound, 1.0))
    return rows


def _idle(many: Daemon) -> list[Row]:
    """What sessions cost while nobody asks anything: ages are looked at, and sources."""
    before, start = many.used(), time.monotonic()
    time.sleep(IDLE_WINDOW)
    after, took = many.used(), time.monotonic() - start
    shares = [(now - then) / took for then, now in zip(before, after, strict=True)]
    return [
        Row(f"  {name}, {SESSIONS} idle sessions", f"{share * 100:8.2f} % of a core")
        for name, share in zip(("gateway", "keeper"), shares, strict=True)
    ]
