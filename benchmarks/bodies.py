"""Bodies that are judged, against the same bodies passed on as they come, by one gateway.

The budgets of a judged body: an agent's request of 200 KiB, in both ways of writing it, costs 2 ms
more, and one of 10 MiB, in the worst shape, does not delay another session by 20 ms. The same
session sends the same body to a path that its policy opens without judging, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from benchmarks.players import duties
from benchmarks.players.modelbodies import (
    AGENT,
    AS_AN_AGENT,
    COMPACT,
    HOST,
    JUDGED,
    LONG,
    PASSED,
    SHAPES,
)
from benchmarks.players.peer import Peer, cores
from benchmarks.rounds import Row, sample
from benchmarks.tunnel import close
from benchmarks.ways import HTTP1, Way, enter, leaf

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS, TIMES = 41, 5
"""Rounds of the small body, and requests of each."""

COST, DELAY = 0.002, 0.020
"""Seconds that a judged body may take longer, and that it may delay another session."""

LONG_TIMES, ASKED, INTERVAL = 4, 120, 0.002
"""Long bodies one after the other, and requests of the other session meanwhile."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Two sessions of one gateway: one that sends bodies, and another."""

    sender: Way
    other: Way


@contextmanager
def sessions() -> Iterator[Sessions]:
    """The sessions, with an origin of their own."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots = trustme.CA()
        leaf(roots, desk / "origin.pem", HOST)
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port, authority = origin.ask("port"), roots.cert_pem.bytes().decode()
        gateway = stack.enter_context(Peer("benchmarks.players.gateway", core=proxy_core))

        def opened() -> Way:
            client, door = enter(stack, other_core, HTTP1)
            ca = gateway.ask("models", door, port=port, authority=authority)
            close(door)
            address = client.ask("resolve", name=HOST)
            client.ask("aim", host=address, port=duties.PORT, authority=ca, name=HOST)
            return Way(client, gateway.pid)

        yield Sessions(opened(), opened())


def measure() -> list[Row]:
    """The cost of an agent's body, then the delay by long ones in each shape."""
    with sessions() as found:
        return [*_cost(found, AS_AN_AGENT), *_cost(found, COMPACT), *_delays(found)]


def _cost(found: Sessions, shape: str) -> list[Row]:
    added: dict[str, list[float]] = {"CPU": [], "clock": []}
    way = found.sender
    for number in range(PAIRS):
        took = {}
        for target in (JUDGED, PASSED) if number % 2 else (PASSED, JUDGED):
            used = way.used()
            clock = _post(way, target, shape, AGENT, TIMES)
            took[target] = {"CPU": way.used() - used, "clock": clock}
        for kind, values in added.items():
            values.append((took[JUDGED][kind] - took[PASSED][kind]) / TIMES)
    return [
        Row(
            f"judging a body of 200 KiB {shape}, of 2 ms ({kind})",
            sample(values).shown("ms", 1e3),
            statistics.median(values) / COST,
            1.0,
        )
        for kind, values in added.items()
    ]


def _delays(found: Sessions) -> list[Row]:
    rows = []
    with ThreadPoolExecutor(1) as pool:
        for shape in SHAPES:
            passed, judged = (_delay(pool, found, target, shape) for target in (PASSED, JUDGED))
            more = judged - passed
            rows.append(Row(f"  10 MiB, {shape}", f"{more * 1e3:8.1f} ms", more / DELAY))
    worst = max(row.ratio or 0.0 for row in rows)
    name = "delay of another session by a judged body of 10 MiB, of 20 ms"
    return [Row(name, f"{worst * DELAY * 1e3:8.1f} ms", worst, 1.0), *rows]


def _delay(pool: ThreadPoolExecutor, found: Sessions, target: str, shape: str) -> float:
    """Seconds of the other session's requests, of which one in twenty takes longer, while long
    bodies are sent."""
    sending = pool.submit(_post, found.sender, target, shape, LONG, LONG_TIMES)
    took: list[float] = []
    while not sending.done() or len(took) < ASKED:
        took += found.other.client.ask("pace", count=8, interval=INTERVAL)
        if sending.done() and len(took) < ASKED:
            sending = pool.submit(_post, found.sender, target, shape, LONG, LONG_TIMES)
    sending.result()
    return statistics.quantiles(took, n=20)[-1]


def _post(way: Way, target: str, shape: str, size: int, count: int) -> float:
    taken = way.client.ask("post", target=target, shape=shape, size=size, count=count)
    return float(taken)
