"""The tunnel against HAProxy in TCP mode on the same path.

Client in an empty namespace → TPROXY → proxy → origin on loopback, TLS records passed untouched
and the hello's name read by both. The proxies have one core, the client and the origin the other.
Rates are what the whole path gives, so beside them stands what the proxy itself used.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.players import haproxy
from benchmarks.players.client import NAMES
from benchmarks.players.origin import BULK
from benchmarks.players.peer import Peer, cores, cpu_seconds
from benchmarks.rounds import Row, Sample, interleave, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BULK_AT_LEAST = 0.7
CONNECTIONS_AT_LEAST = 0.3
LATENCY_AT_MOST = 3.0

CONNECTIONS = 3000
REQUESTS = 2000
_GIB = 1 << 30
PORT = 443
ANY_ADDRESS = "198.18.0.1"

BOUNDED = (
    ("bulk down, GiB/s, against HAProxy", None, BULK_AT_LEAST),
    ("bulk up, GiB/s, against HAProxy", None, BULK_AT_LEAST),
    ("new connections per second, against HAProxy", None, CONNECTIONS_AT_LEAST),
    ("latency added to a request, against HAProxy's", LATENCY_AT_MOST, None),
)
DOWN, UP, NEW, ADDED = range(4)


@dataclass(frozen=True, slots=True)
class Path:
    """A way to the origin; without a proxy, the client is on the host beside it."""

    client: Peer
    proxy: int | None
    addresses: dict[str, str]
    port: int = PORT

    def timer(
        self, verb: str, name: str, spent: list[float], **arguments: int
    ) -> Callable[[], float]:
        """Times what the client does, and keeps what the proxy used meanwhile."""

        def run() -> float:
            before = cpu_seconds(self.proxy) if self.proxy else 0.0
            asked: dict[str, object] = {
                "host": self.addresses[name],
                "port": self.port,
                **arguments,
            }
            took = self.client.ask(verb, (), **asked)
            spent.append(cpu_seconds(self.proxy) - before if self.proxy else 0.0)
            return float(took)

        return run


def measure() -> list[Row]:
    """Bulk, connections and latency."""
    with paths() as found:
        if "haproxy" not in found:
            print(f"  {haproxy.MISSING}")
        return [
            *_bulk(DOWN, "download", "down.example", found),
            *_bulk(UP, "upload", "up.example", found),
            *_connections(found),
            *_latency(found),
        ]


@contextmanager
def paths() -> Iterator[dict[str, Path]]:
    """The ways that are compared: direct, by the gateway, and by HAProxy where it is installed."""
    proxy_core, other_core = cores()
    with ExitStack() as stack:
        origin = stack.enter_context(Peer("benchmarks.players.origin", core=other_core))
        port = origin.ask("port")
        host = stack.enter_context(Peer("benchmarks.players.client", core=other_core))
        loopback = Path(host, None, dict.fromkeys(NAMES, "127.0.0.1"), port)
        gateway = stack.enter_context(Peer("benchmarks.players.gateway", core=proxy_core))
        client, door = inside(stack, other_core)
        gateway.ask("open", door, port=port)
        close(door)
        addresses = {name: client.ask("resolve", name=name) for name in NAMES}
        found = {"direct": loopback, "keyhole": Path(client, gateway.pid, addresses)}
        if haproxy.program():
            client, door = inside(stack, other_core)
            rival = stack.enter_context(haproxy.HAProxy(door[0], port, proxy_core))
            close(door)
            found["haproxy"] = Path(client, rival.pid, dict.fromkeys(NAMES, ANY_ADDRESS))
        for path in found.values():
            path.client.ask("fresh", host=path.addresses["small.example"], port=path.port, count=50)
        yield found


def inside(stack: ExitStack, core: int) -> tuple[Peer, list[int]]:
    """A client in an empty namespace, and the door of that namespace."""
    client = stack.enter_context(empty_namespace("benchmarks.players.client", core))
    return client, client.fetch("door")[1]


def empty_namespace(module: str, core: int) -> Peer:
    """A player in an empty network namespace."""
    unshare = ["unshare", "--net"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    return Peer(module, core=core, before=unshare)


def close(descriptors: list[int]) -> None:
    """Let go of a door that was handed on."""
    for descriptor in descriptors:
        os.close(descriptor)


def _bulk(which: int, verb: str, name: str, paths: dict[str, Path]) -> list[Row]:
    times, used = _compare(verb, name, paths)
    rates = {key: BULK / _GIB / found.median for key, found in times.items()}
    word = verb.removesuffix("load")
    return [
        _bounded(which, f"{rates['keyhole']:8.2f} GiB/s", _ratio(rates)),
        *(
            Row(f"  {key}, a GiB {word}", times[key].shown("ms", 1e3 * _GIB / BULK))
            for key in times
        ),
        *_used(f"CPU for a GiB {word}", used, "ms", 1e3 * _GIB / BULK),
    ]


def _connections(paths: dict[str, Path]) -> list[Row]:
    times, used = _compare("connections", "small.example", paths, count=CONNECTIONS)
    rates = {key: CONNECTIONS / found.median for key, found in times.items()}
    scale = 1e6 / CONNECTIONS
    return [
        _bounded(NEW, f"{rates['keyhole']:8.0f} /s", _ratio(rates)),
        *(Row(f"  {key}, a new connection", times[key].shown("µs", scale)) for key in times),
        *_used("CPU for a new connection", used, "µs", scale),
    ]


def _latency(paths: dict[str, Path]) -> list[Row]:
    times, _ = _compare("talk", "talk.example", paths, count=REQUESTS)
    direct = times["direct"].median
    added = {key: sample.median - direct for key, sample in times.items() if key != "direct"}
    return [
        _bounded(ADDED, f"{added['keyhole'] * 1e6:8.1f} µs", _ratio(added)),
        *(Row(f"  {key}, request and reply", times[key].shown("µs", 1e6)) for key in times),
    ]


def _compare(
    verb: str, name: str, paths: dict[str, Path], **arguments: int
) -> tuple[dict[str, Sample], dict[str, Sample]]:
    """Times of each path, and the CPU-seconds of a round at each proxy."""
    spent: dict[str, list[float]] = {key: [] for key in paths}
    times = interleave(
        {key: path.timer(verb, name, spent[key], **arguments) for key, path in paths.items()}
    )
    return times, {key: sample(spent[key]) for key in paths if paths[key].proxy}


def _used(what: str, used: dict[str, Sample], unit: str, scale: float) -> list[Row]:
    rival = used.get("haproxy")
    return [
        Row(
            f"  {key}, {what}",
            found.shown(unit, scale),
            found.median / rival.median if rival and found is not rival else None,
        )
        for key, found in used.items()
    ]


def _ratio(values: dict[str, float]) -> float | None:
    return values["keyhole"] / values["haproxy"] if "haproxy" in values else None


def _bounded(which: int, figure: str, ratio: float | None) -> Row:
    name, at_most, at_least = BOUNDED[which]
    return Row(name, figure, ratio, at_most, at_least)
