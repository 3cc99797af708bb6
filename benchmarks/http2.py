"""Intercepted HTTP/2 against Envoy and mitmproxy on the same path and with the same duties.

As in `intercept.py`: client in an empty namespace → TPROXY → TLS → proxy → TLS → origin, and what
is judged is the proxy's own processor time. Clients and origins offer HTTP/2, and each proxy takes
it on both sides. The origin is nginx, for two-way streams `players/streamorigin.py`.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trustme

from benchmarks.intercept import Cost, asked, compare
from benchmarks.players import duties, http2load, nginx
from benchmarks.players.httporigin import BULK
from benchmarks.players.peer import Peer, cores, memory
from benchmarks.rounds import Row, Sample, sample
from benchmarks.ways import HTTP2, Rig, Way, is_missing, leaf

ENVOY_AT_LEAST, MITMPROXY_AT_LEAST = 0.35, 8.0
UNARY_AT_LEAST = 0.35
BULK_AT_LEAST = 0.6
MESSAGE_AT_MOST = 2.0
STREAM_AT_MOST, CONNECTION_AT_MOST = 8 << 10, 40 << 10
"""Bytes of the gateway's memory for one more idle stream, and for one more idle connection."""

ROUNDS, BULK_ROUNDS = 9, 15
CONNECTIONS, STREAMS = 4, 32
REQUESTS = 10
"""Requests of a round, for each of the new connections that the way has in a round of those."""
HTTP1_CONNECTIONS = 32
BULKS = 2
"""Bulk transfers of a round."""
MESSAGES = 300
IDLE, BATCHES = 100, 5
"""Idle connections or streams at a time, and how many times more of them."""

_GIB = 1 << 30


def measure() -> list[Row]:
    """Memory on fresh processes, then requests, calls, bulk and two-way streams."""
    missing = nginx.missing() or (None if http2load.program() else http2load.MISSING)
    if is_missing(missing):
        return [Row("requests over HTTP/2, against Envoy", "", at_least=ENVOY_AT_LEAST)]
    with ExitStack() as stack:
        desk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rig = Rig(stack, desk, trustme.CA(), trustme.CA(), HTTP2)
        rig.roots.cert_pem.write_to_path(desk / "roots.pem")
        leaf(rig.roots, desk / "origin.pem")
        core = cores()[1]
        http2, http1 = stack.enter_context(nginx.running(desk, core))
        echo = Peer("benchmarks.players.streamorigin", str(desk / "origin.pem"), core=core)
        streaming = stack.enter_context(echo).ask("port")

        found, to_http1, two_way = (_ways(rig, port) for port in (http2, http1, streaming))
        rows = _memory(found["keyhole"], two_way["keyhole"])
        mitmproxy = rig.by_mitmproxy(http2)
        every = found if mitmproxy is None else {**found, "mitmproxy": mitmproxy}
        for name, way in every.items():
            _check(name, way, "HTTP/2.0", desk / nginx.SEEN)
        for name, way in to_http1.items():
            _check(name, way, "HTTP/1.1", desk / nginx.SEEN)
        return [
            *rows,
            *_requests(every),
            *_unary(found),
            *_bulk("down", {"target": duties.DOWN}, found),
            *_bulk("up", {"target": duties.UP, "body": "bulk"}, found),
            *_messages({"direct": rig.direct(streaming), **two_way}),
            *_crossing("HTTP/1.1 to an HTTP/2 origin", found, http1=True),
            *_crossing("HTTP/2 to an HTTP/1.1 origin", to_http1, http1=False),
            *_crossing("HTTP/1.1 to an HTTP/1.1 origin", to_http1, http1=True),
        ]


def _ways(rig: Rig, port: int) -> dict[str, Way]:
    """By the gateway, and by Envoy."""
    ways = {"keyhole": rig.by_gateway(port), "envoy": rig.by_envoy(port)}
    return {name: way for name, way in ways.items() if way is not None}


def _check(name: str, way: Way, protocol: str, log: Path) -> None:
    """That the proxy does what the comparison is about; else its speed means nothing."""
    way.client.ask("status", target=duties.ECHO)
    seen = log.read_text().splitlines()[-1]
    if duties.ADDED[1] not in seen or duties.PLACEHOLDER in seen:
        raise RuntimeError(f"{name} did not change the credential: {seen}")
    if protocol not in seen:
        raise RuntimeError(f"{name} did not speak {protocol} with the origin: {seen}")
    # mitmproxy is given no rules.
    status = way.client.ask("status", target="/v2/other")
    if status != (200 if name == "mitmproxy" else 403):
        raise RuntimeError(f"{name} answered {status} to a request that no rule allows")


def load(ways: dict[str, Way], target: str = duties.SMALL, **words: str | int) -> Cost:
    """What a request costs on each way, with as many at once as HTTP/2 is there for."""
    every: dict[str, Any] = {"target": target, "connections": CONNECTIONS, "streams": STREAMS}

    def run(way: Way) -> tuple[float, float]:
        count = REQUESTS * way.fresh
        return asked("load", count, count=count, **{**every, **words})(way)

    return compare(ways, run, ROUNDS)


def _requests(ways: dict[str, Way]) -> list[Row]:
    cost = load(ways)
    rate = f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s"
    rivals = (("Envoy", ENVOY_AT_LEAST), ("mitmproxy", MITMPROXY_AT_LEAST))
    where = f"{CONNECTIONS} connections of {STREAMS} streams"
    return [
        *(
            Row(
                f"requests at {where}, against {rival}",
                rate,
                cost.per_cpu_second(rival.lower()),
                at_least=bound,
            )
            for rival, bound in rivals
        ),
        *cost.rows("a request", "µs", 1e6, _pace),
    ]


def _unary(ways: dict[str, Way]) -> list[Row]:
    cost = load(ways, nginx.UNARY, body="message")
    return [
        Row(
            "gRPC unary calls, against Envoy",
            f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s",
            cost.per_cpu_second("envoy"),
            at_least=UNARY_AT_LEAST,
        ),
        *cost.rows("a call", "µs", 1e6, _pace),
    ]


def _bulk(word: str, words: dict[str, str], ways: dict[str, Way]) -> list[Row]:
    run = asked("load", BULKS * BULK / _GIB, count=BULKS, connections=1, streams=1, **words)
    cost = compare(ways, run, BULK_ROUNDS)
    return [
        Row(
            f"bulk {word} over HTTP/2, against Envoy",
            f"{1 / cost.cpu['keyhole'].median:8.2f} GiB/CPU-s",
            cost.per_cpu_second("envoy"),
            at_least=BULK_AT_LEAST,
        ),
        *cost.rows(f"a GiB {word}", "ms", 1e3, lambda seconds: f"{1 / seconds:5.2f} GiB/s"),
    ]


def _messages(ways: dict[str, Way]) -> list[Row]:
    cost = compare(ways, asked("messages", 1, count=MESSAGES), ROUNDS)
    direct = cost.wall["direct"].median
    added = {name: found.median - direct for name, found in cost.wall.items() if name != "direct"}
    return [
        Row(
            "delay added to a message of a two-way stream, against Envoy's",
            f"{added['keyhole'] * 1e6:8.1f} µs",
            added["keyhole"] / added["envoy"] if "envoy" in added else None,
            MESSAGE_AT_MOST,
        ),
        *(
            Row(f"  {name}, a message's way and back", found.shown("µs", 1e6))
            for name, found in cost.wall.items()
        ),
    ]


def _crossing(pairing: str, ways: dict[str, Way], *, http1: bool) -> list[Row]:
    """A request whose two sides speak different versions, or both HTTP/1.1, to compare with."""
    streams = 1 if http1 else STREAMS
    connections = HTTP1_CONNECTIONS if http1 else CONNECTIONS
    cost = load(ways, http1=http1, connections=connections, streams=streams)
    return [
        Row(
            f"requests by {pairing}, against Envoy",
            f"{1 / cost.cpu['keyhole'].median:8.0f} /CPU-s",
            cost.per_cpu_second("envoy"),
        ),
        *cost.rows("a request", "µs", 1e6, _pace),
    ]


def _memory(connections: Way, streams: Way) -> list[Row]:
    held = (
        ("connection", _held(connections, "hold"), CONNECTION_AT_MOST),
        ("stream", _held(streams, "hold_streams"), STREAM_AT_MOST),
    )
    return [
        Row(
            f"memory for an idle {what} of HTTP/2, of {most >> 10} KiB",
            own.shown("KiB", 1 / 1024),
            own.median / most,
            1.0,
        )
        for what, own, most in held
    ]


def _held(way: Way, verb: str) -> Sample:
    """Bytes for one more."""
    assert way.proxy  # noqa: S101 - for the type checker
    grown = []
    for _ in range(BATCHES + 1):
        before = memory(way.proxy)
        way.client.ask(verb, count=IDLE)
        way.settle()
        grown.append((memory(way.proxy) - before) / IDLE)
    way.client.ask("release")
    return sample(grown[1:])  # what is loaded once for all does not count


def _pace(seconds: float) -> str:
    return f"{1 / seconds:6.0f} /s"
