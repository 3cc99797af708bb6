"""Intercepted traffic against Envoy and mitmproxy on the same path and with the same duties.

Client in an empty namespace → TPROXY → TLS → proxy → TLS → origin on loopback. The proxies have one
core, the client and the origin the other. What is judged is the proxy's own processor time, since
rates are what the whole path gives; they stand beside it. The duties are in `players/duties.py`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trustme

from benchmarks.players import duties, envoy, httpload, mitmproxy
from benchmarks.players.gateway import EVERY_LINE
from benchmarks.players.httporigin import BULK
from benchmarks.players.peer import Peer, cores, cpu_seconds, memory
from benchmarks.rounds import Row, Sample, interleave, sample
from benchmarks.tunnel import ANY_ADDRESS, close, empty_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 5

ENVOY_AT_LEAST, MITMPROXY_AT_LEAST = 1.0, 10.0
DOWN_AT_LEAST, UP_AT_LEAST = 0.5, 0.8
HANDSHAKE_AT_MOST = 2.5
EVENT_AT_MOST = 2.0
IDLE_AT_MOST = 24 << 10
"""Bytes of the gateway's memory for one more idle connection."""

CONNECTIONS = (1, 32, 256)
BOUNDED = 32
WARM_UP, WINDOW = 0.4, 1.5
"""Seconds of load before it is measured, beside the handshakes, and while it is."""
ENOUGH, PATIENCE = 100, 30.0
"""Requests that must be served meanwhile, and seconds after which no more are waited for."""

EVENTS = 300
IDLE, BATCHES = 100, 5
"""Idle connections at a time, and how many times more of them."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the origin; without a proxy, the client is on the host beside it."""

    client: Peer
    proxy: int | None = None
    handshake: float = 0.002
    """Seconds that the proxy may take for one; an estimate, for waiting."""
    fresh: int = 600
    """New connections of a round."""
    settle: Callable[[], object] = int
    """To be called before memory is looked at."""

    def used(self) -> float:
        """Processor time of the proxy until now."""
        return cpu_seconds(self.proxy) if self.proxy else 0.0


Run = Callable[[Way], tuple[float, float]]
"""Gives seconds of the clock and of the proxy's processor for a unit of work."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a unit of work took, by way: seconds of the clock, and of the proxy's processor."""

    wall: dict[str, Sample]
    cpu: dict[str, Sample]

    def per_cpu_second(self, rival: str) -> float | None:
        """The gateway's work in a second of processor time, against a rival's."""
        ratio = self.ratio(rival)
        return 1 / ratio if ratio else None

    def ratio(self, rival: str) -> float | None:
        """The gateway's processor time for a unit, against a rival's."""
        if rival not in self.cpu:
            return None
        return self.cpu["keyhole"].median / self.cpu[rival].median

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
    with ways() as (origin, found):
        proxied = {name: way for name, way in found.items() if way.proxy}
        native = {name: way for name, way in found.items() if name != "mitmproxy"}
        rows = _memory(proxied)
        for varied in (False, True):
            for connections in CONNECTIONS:
                rows += _requests(origin, proxied, connections, varied=varied)
        rows += _bulk("download", DOWN_AT_LEAST, native)
        rows += _bulk("upload", UP_AT_LEAST, native)
        return [*rows, *_handshakes(proxied), *_events(found)]


@contextmanager
def ways() -> Iterator[tuple[Peer, dict[str, Way]]]:
    """The origin and the ways to it: direct, by the gateway, and by each peer that is installed."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        roots, forgers = trustme.CA(), trustme.CA()
        authority = roots.cert_pem.bytes().decode()
        roots.cert_pem.write_to_path(desk / "roots.pem")
        _leaf(roots, desk / "origin.pem")
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port = origin.ask("port")

        direct = stack.enter_context(Peer("benchmarks.players.httpload", core=other_core))
        direct.ask("aim", host="127.0.0.1", port=port, authority=authority)
        found = {"direct": Way(direct)}

        gateway = stack.enter_context(Peer("benchmarks.players.gateway", core=proxy_core))
        client, door = _inside(stack, other_core)
        ca = gateway.ask("intercept", door, port=port, authority=authority, audit=EVERY_LINE)
        close(door)
        address = client.ask("resolve", name=duties.HOST)
        client.ask("aim", host=address, port=duties.PORT, authority=ca)
        found["keyhole"] = Way(client, gateway.pid, settle=lambda: gateway.ask("settle"))

        trusted = forgers.cert_pem.bytes().decode()
        if not _is_missing(envoy.missing()):
            client = stack.enter_context(empty_namespace("benchmarks.players.httpload", other_core))
            client.ask("capture")
            client.ask("aim", host=ANY_ADDRESS, port=duties.PORT, authority=trusted)
            own = _own(desk, "envoy", forgers)
            rival = stack.enter_context(
                envoy.running(own, client.pid, port, desk / "roots.pem", proxy_core)
            )
            found["envoy"] = Way(client, rival.pid)
        if not _is_missing(mitmproxy.missing()):
            client, door = _inside(stack, other_core)
            client.ask("aim", host=ANY_ADDRESS, port=duties.PORT, authority=trusted)
            own = _own(desk, "mitmproxy", forgers)
            rival = stack.enter_context(
                mitmproxy.running(own, door[0], port, desk / "roots.pem", proxy_core)
            )
            close(door)
            found["mitmproxy"] = Way(client, rival.pid, handshake=0.02, fresh=60)
        for name, way in found.items():
            if way.proxy:
                _check(name, way, origin)
        yield origin, found


def _inside(stack: ExitStack, core: int) -> tuple[Peer, list[int]]:
    client = stack.enter_context(empty_namespace("benchmarks.players.httpload", core))
    return client, client.fetch("door")[1]


def _own(desk: Path, name: str, forgers: trustme.CA) -> Path:
    """A directory of a peer's own, with a certificate for the intercepted name."""
    own = desk / name
    own.mkdir()
    _leaf(forgers, own / "leaf.pem")
    return own


def _leaf(authority: trustme.CA, path: Path) -> None:
    authority.issue_cert(duties.HOST).private_key_and_cert_chain_pem.write_to_path(path)


def _is_missing(why: str | None) -> bool:
    if why:
        print(f"  {why}")
    return why is not None


def _check(name: str, way: Way, origin: Peer) -> None:
    """That the proxy does what the comparison is about; else its speed means nothing."""
    way.client.ask("echo")
    seen = origin.ask("seen").lower()
    wanted = ": ".join(duties.ADDED).lower()
    if wanted not in seen or duties.PLACEHOLDER in seen:
        raise RuntimeError(f"{name} did not change the credential: {seen}")
    # mitmproxy is given no rules.
    status = way.client.ask("status", target="/v2/other")
    if status != (200 if name == "mitmproxy" else 403):
        raise RuntimeError(f"{name} answered {status} to a request that no rule allows")


def _compare(ways: dict[str, Way], run: Run) -> Cost:
    """Run on each way in turn."""
    used: dict[str, list[float]] = {name: [] for name in ways}

    def timer(name: str, way: Way) -> Callable[[], float]:
        def once() -> float:
            wall, cpu = run(way)
            used[name].append(cpu)
            return wall

        return once

    wall = interleave({name: timer(name, way) for name, way in ways.items()}, ROUNDS)
    return Cost(wall, {name: sample(used[name]) for name, way in ways.items() if way.proxy})


def _asked(verb: str, units: float, **arguments: Any) -> Run:  # noqa: ANN401 - JSON
    """Have the client do something that is so many units of work."""

    def run(way: Way) -> tuple[float, float]:
        before = way.used()
        took = float(way.client.ask(verb, **arguments))
        return took / units, (way.used() - before) / units

    return run


def _requests(origin: Peer, ways: dict[str, Way], connections: int, *, varied: bool) -> list[Row]:
    heads = "varied" if varied else "repeated"
    where = f"{connections} connection{'s' if connections > 1 else ''}, {heads} heads"
    bounded = connections == BOUNDED
    names = [f"requests per CPU-second, {where}, against {rival}" for rival in RIVALS]
    bounds = (ENVOY_AT_LEAST, MITMPROXY_AT_LEAST) if bounded else (None, None)
    if httpload.program() is None:
        print(f"  {httpload.MISSING}")
        return [Row(n, "", at_least=b) for n, b in zip(names, bounds, strict=True)]

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

    cost = _compare(ways, run)
    rate = f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s"
    return [
        *(
            Row(name, rate, cost.per_cpu_second(rival.lower()), at_least=bound)
            for name, rival, bound in zip(names, RIVALS, bounds, strict=True)
        ),
        *cost.rows("a request", "µs", 1e6, lambda seconds: f"{1 / seconds:6.0f} /s"),
    ]


RIVALS = ("Envoy", "mitmproxy")


def _bulk(verb: str, at_least: float, ways: dict[str, Way]) -> list[Row]:
    cost = _compare(ways, _asked(verb, BULK / _GIB))
    word = verb.removesuffix("load")
    return [
        Row(
            f"bulk {word} per CPU-second, against Envoy",
            f"{1 / cost.cpu['keyhole'].median:8.2f} GiB/CPU-s",
            cost.per_cpu_second("envoy"),
            at_least=at_least,
        ),
        *cost.rows(f"a GiB {word}", "ms", 1e3, lambda seconds: f"{1 / seconds:5.2f} GiB/s"),
    ]


def _handshakes(ways: dict[str, Way]) -> list[Row]:
    cost = _compare(ways, lambda way: _asked("fresh", way.fresh, count=way.fresh)(way))
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
    cost = _compare(ways, _asked("events", 1, count=EVENTS))
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
