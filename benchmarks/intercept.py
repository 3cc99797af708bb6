"""Intercepted traffic against Envoy and mitmproxy on the same path and with the same duties.

Client in an empty namespace → TPROXY → TLS → proxy → TLS → origin on loopback. The proxies have one
core, the client and the origin the other. What is judged is the proxy's own processor time, since
rates are what the whole path gives; they stand beside it. The duties are in `players/duties.py`.
Heads are repeated, where what a proxy remembers of them helps it, or varied, where it does not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.players import httpload
from benchmarks.players.httporigin import BULK
from benchmarks.players.peer import Peer, memory
from benchmarks.rounds import Row, Sample, interleave, sample
from benchmarks.ways import UNSCANNED, Way, is_missing, ways

ROUNDS, BULK_ROUNDS = 9, 31

ENVOY_AT_LEAST, MITMPROXY_AT_LEAST = 1.0, 10.0
DOWN_AT_LEAST, UP_AT_LEAST = 0.5, 0.8
SCANNED_AT_LEAST = 0.8
HANDSHAKE_AT_MOST = 2.5
EVENT_AT_MOST = 2.0
IDLE_AT_MOST = 24 << 10
"""Bytes of the gateway's memory for one more idle connection."""

RIVALS = ("Envoy", "mitmproxy")
CONNECTIONS = (1, 32, 256)
BOUNDED = 32
WARM_UP, WINDOW = 0.4, 1.0
"""Seconds of load before it is measured, beside the handshakes, and while it is."""
ENOUGH, PATIENCE = 100, 30.0
"""Requests that must be served meanwhile, and seconds after which no more are waited for."""

EVENTS = 300
IDLE, BATCHES = 100, 5
"""Idle connections at a time, and how many times more of them."""

_GIB = 1 << 30


Run = Callable[[Way], tuple[float, float]]
"""Gives seconds of the clock and of the proxy's processor for a unit of work."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a unit of work took, by way: seconds of the clock, and of the proxy's processor."""

    wall: dict[str, Sample]
    cpu: dict[str, Sample]
    rounds: dict[str, list[float]]
    """The latter, round by round."""

    def per_cpu_second(self, rival: str) -> float | None:
        """The gateway's work in a second of processor time, against a rival's."""
        ratio = self.ratio(rival)
        return 1 / ratio if ratio else None

    def ratio(self, rival: str) -> float | None:
        """The gateway's processor time for a unit, against a rival's in the same round: how fast a
        machine with neighbours is changes from one round to the next."""
        if rival not in self.rounds:
            return None
        pairs = zip(self.rounds["keyhole"], self.rounds[rival], strict=True)
        return statistics.median(own / other for own, other in pairs)

    def rows(self, what: str, unit: str, scale: float, pace: Callable[[float], str]) -> list[Row]:
        """A line for each way."""
        return [
            Row(
                f"  {name}, {what}",
                f"{self.cpu[name].shown(unit, scale)} CPU, {pace(found.median)}"
                if name in self.cpu
                else pace(found.median),
            )
            for name, found in self.wall.items()
        ]


def measure() -> list[Row]:
    """Memory on fresh processes, then requests, bulk, handshakes and events."""
    is_missing(None if httpload.program() else httpload.MISSING)
    with ways() as (origin, found):
        native = {name: way for name, way in found.items() if name != "mitmproxy"}
        del found[UNSCANNED]
        proxied = {name: way for name, way in found.items() if way.proxy}
        rows = _memory(proxied)
        for varied in (False, True):
            for connections in CONNECTIONS:
                rows += _requests(origin, proxied, connections, varied=varied)
        rows += _bulk("download", DOWN_AT_LEAST, native)
        del native[UNSCANNED]
        rows += _bulk("upload", UP_AT_LEAST, native)
        return [*rows, *_handshakes(proxied), *_events(found)]


def compare(ways: dict[str, Way], run: Run, rounds: int = ROUNDS) -> Cost:
    """Run on each way in turn."""
    used: dict[str, list[float]] = {name: [] for name in ways}

    def timer(name: str, way: Way) -> Callable[[], float]:
        def once() -> float:
            wall, cpu = run(way)
            used[name].append(cpu)
            return wall

        return once

    wall = interleave({name: timer(name, way) for name, way in ways.items()}, rounds)
    cpu = {name: used[name] for name, way in ways.items() if way.proxy}
    return Cost(wall, {name: sample(taken) for name, taken in cpu.items()}, cpu)


def asked(verb: str, units: float, **arguments: Any) -> Run:  # noqa: ANN401 - JSON
    """Have the client do something that is so many units of work."""

    def run(way: Way) -> tuple[float, float]:
        before = way.used()
        took = float(way.client.ask(verb, **arguments))
        return took / units, (way.used() - before) / units

    return run


def requests(origin: Peer, ways: dict[str, Way], connections: int, *, varied: bool) -> Cost:
    """What a request costs on each way, under load."""

    def run(way: Way) -> tuple[float, float]:
        way.client.ask("begin", connections=connections, varied=varied)
        time.sleep(WARM_UP + connections * way.handshake)
        first, used, start = origin.ask("served"), way.used(), time.perf_counter()
        served, took = 0, 0.0
        while took < WINDOW or (served < ENOUGH and took < PATIENCE):
            time.sleep(WINDOW / 3)
            served, took = origin.ask("served") - first, time.perf_counter() - start
        used = way.used() - used
        way.client.ask("end")
        if not served:
            raise RuntimeError(f"no request was served at {connections} connections")
        return took / served, used / served

    return compare(ways, run)


def download(ways: dict[str, Way]) -> Cost:
    """What a GiB to the client costs on each way."""
    return compare(ways, asked("download", BULK / _GIB), BULK_ROUNDS)


def _requests(origin: Peer, ways: dict[str, Way], connections: int, *, varied: bool) -> list[Row]:
    heads = "varied" if varied else "repeated"
    where = f"{connections} connection{'s' if connections > 1 else ''}, {heads}"
    names = [f"requests at {where}, against {rival}" for rival in RIVALS]
    bounds = (ENVOY_AT_LEAST, MITMPROXY_AT_LEAST) if connections == BOUNDED else (None, None)
    if httpload.program() is None:
        return [Row(n, "", at_least=b) for n, b in zip(names, bounds, strict=True) if b]

    cost = requests(origin, ways, connections, varied=varied)
    rate = f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s"
    return [
        *(
            Row(name, rate, cost.per_cpu_second(rival.lower()), at_least=bound)
            for name, rival, bound in zip(names, RIVALS, bounds, strict=True)
        ),
        *cost.rows("a request", "µs", 1e6, lambda seconds: f"{1 / seconds:6.0f} /s"),
    ]


def _bulk(verb: str, at_least: float, ways: dict[str, Way]) -> list[Row]:
    cost = compare(ways, asked(verb, BULK / _GIB), BULK_ROUNDS)
    word = verb.removesuffix("load")
    scan = cost.per_cpu_second(UNSCANNED)
    return [
        Row(
            f"bulk {word} per CPU-second, against Envoy",
            f"{1 / cost.cpu['keyhole'].median:8.2f} GiB/CPU-s",
            cost.per_cpu_second("envoy"),
            at_least=at_least,
        ),
        *([Row("  with the scan, against without", "", scan, None, SCANNED_AT_LEAST)] * bool(scan)),
        *cost.rows(f"a GiB {word}", "ms", 1e3, lambda seconds: f"{1 / seconds:5.2f} GiB/s"),
    ]


def _handshakes(ways: dict[str, Way]) -> list[Row]:
    cost = compare(ways, lambda way: asked("fresh", way.fresh, count=way.fresh)(way))
    return [
        Row(
            "CPU for a new TLS connection and a request, against Envoy",
            cost.cpu["keyhole"].shown("µs", 1e6),
            cost.ratio("envoy"),
            HANDSHAKE_AT_MOST,
        ),
        *cost.rows("a new connection", "µs", 1e6, lambda seconds: f"{seconds * 1e3:6.2f} ms"),
    ]


def _events(ways: dict[str, Way]) -> list[Row]:
    cost = compare(ways, asked("events", 1, count=EVENTS))
    direct = cost.wall["direct"].median
    added = {name: found.median - direct for name, found in cost.wall.items() if name != "direct"}
    return [
        Row(
            "delay added to a server-sent event, against Envoy's",
            f"{added['keyhole'] * 1e6:8.1f} µs",
            added["keyhole"] / added["envoy"] if "envoy" in added else None,
            EVENT_AT_MOST,
        ),
        *(
            Row(f"  {name}, an event's way", found.shown("µs", 1e6))
            for name, found in cost.wall.items()
        ),
    ]


def _memory(ways: dict[str, Way]) -> list[Row]:
    each = {name: _held(way) for name, way in ways.items()}
    own = each["keyhole"]
    return [
        Row(
            "memory for an idle intercepted connection, of 24 KiB",
            own.shown("KiB", 1 / 1024),
            own.median / IDLE_AT_MOST,
            1.0,
        ),
        *(
            Row(f"  {name}, an idle connection", found.shown("KiB", 1 / 1024))
            for name, found in each.items()
            if name != "keyhole"
        ),
    ]


def _held(way: Way) -> Sample:
    """Bytes for one more connection, over a few hundred."""
    assert way.proxy  # noqa: S101 - for the type checker
    way.client.ask("hold", count=IDLE)  # so that what is loaded once for all does not count
    grown = []
    before = _settled(way, way.proxy)
    for _ in range(BATCHES):
        way.client.ask("hold", count=IDLE)
        after = _settled(way, way.proxy)
        grown.append((after - before) / IDLE)
        before = after
    way.client.ask("release")
    return sample(grown)


def _settled(way: Way, proxy: int) -> int:
    way.settle()
    return memory(proxy)
