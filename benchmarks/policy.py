"""What a decision costs, with few rules and with many."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.rounds import Row, interleave
from keyhole.model.host import Host
from keyhole.policy.build import PolicyContext
from keyhole.policy.egress import decide_egress
from keyhole.policy.load import PolicyText, load
from keyhole.policy.request import RequestFacts, decide_request
from keyhole.policy.rulebook import Rulebook

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 50, 5000
REPEATS = 4000
BOUND = 3.0
HOST = Host.parse("api.example")

SHAPES: dict[str, tuple[Callable[[int], str], Callable[[int], str]]] = {
    "literal paths": (lambda i: f"GET /v1/things{i}/items", lambda i: f"/v1/things{i}/items"),
    "subtrees": (lambda i: f"GET /v1/things{i}/**", lambda i: f"/v1/things{i}/a/b/c"),
    "one-segment globs": (lambda i: f"GET /v1/things{i}/*/x", lambda i: f"/v1/things{i}/7/x"),
    "prefix globs": (lambda i: f"GET /v1/p{i}-*/x", lambda i: f"/v1/p{i}-seven/x"),
    "suffix globs": (lambda i: f"GET /v1/*-s{i}/x", lambda i: f"/v1/seven-s{i}/x"),
    "any depth, then a name": (lambda i: f"GET /**/n{i}", lambda i: f"/a/b/c/n{i}"),
}


def measure() -> list[Row]:
    """Request decisions by rule shape, and egress decisions."""
    rows = []
    for shape, (rule, path) in SHAPES.items():
        subjects = {
            str(count): _request_timer([rule(i) for i in range(count)], path(count // 2))
            for count in (FEW, MANY)
        }
        rows.append(_row(f"request, {MANY} rules against {FEW}: {shape}", subjects))
    subjects = {str(count): _egress_timer(count) for count in (FEW, MANY)}
    rows.append(_row(f"connection, {MANY} hosts against {FEW}", subjects))
    return rows


def _row(name: str, subjects: dict[str, Callable[[], float]]) -> Row:
    found = interleave(subjects)
    few, many = found[str(FEW)], found[str(MANY)]
    return Row(name, many.shown("µs", 1e6), many.median / few.median, BOUND)


def _request_timer(rules: list[str], path: str) -> Callable[[], float]:
    listed = ", ".join(f'"{rule}"' for rule in rules)
    book = _book(f'[services.s]\nhosts = ["api.example"]\nallow = [{listed}]\n')
    request = RequestFacts("GET", path)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(REPEATS):
            decide_request(book, HOST, 443, request)
        return (time.perf_counter() - start) / REPEATS

    if not decide_request(book, HOST, 443, request).allowed:
        raise RuntimeError(f"the measured request is denied: {path}")
    return run


def _egress_timer(count: int) -> Callable[[], float]:
    listed = ", ".join(f'"h{i}.example"' for i in range(count))
    book = _book(f"[egress]\nallow = [{listed}]\n")
    host = Host.parse(f"h{count // 2}.example")

    def run() -> float:
        start = time.perf_counter()
        for _ in range(REPEATS):
            decide_egress(book, host, 443)
        return (time.perf_counter() - start) / REPEATS

    if not decide_egress(book, host, 443).allowed:
        raise RuntimeError("the measured connection is denied")
    return run


def _book(text: str) -> Rulebook:
    world = PolicyContext({}, lambda _: None, ())
    return Rulebook(
        load(PolicyText("bench.toml", b"version = 1\n" + text.encode()), None, world).policy
    )
