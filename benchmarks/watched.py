"""What questions and a person who watches cost the data plane.

Two gateways as `keyhole up` starts them, with the same policy and load. At one of them a second
sandbox has a thousand connections that wait for an answer, and somebody reads every event. What is
judged is the data plane's own processor time for a request, in the same round. Each request is an
event of the log, so events come as fast as requests do.
"""

from __future__ import annotations

import select
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from benchmarks.players import duties
from benchmarks.players.daemon import Daemon
from benchmarks.players.peer import Peer, cores
from benchmarks.rounds import Row, interleave, sample
from benchmarks.sessions import load

if TYPE_CHECKING:
    from collections.abc import Callable

ASKS = 1000
CPU_AT_MOST = 1.05
CONNECTIONS = 32
ROUNDS = 9
PATIENCE = 60.0

_POLICY = f"""
[approvals]
ask = ["hosts"]
wait = "10m"
most_pending = {ASKS}
"""


def measure() -> list[Row]:
    """The data plane's processor time for a request, watched and unwatched."""
    proxy_core, other_core = cores()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory, ExitStack() as stack:
        desk = Path(directory)
        roots = trustme.CA()
        roots.issue_cert(duties.HOST).private_key_and_cert_chain_pem.write_to_path(
            desk / "origin.pem"
        )
        origin = stack.enter_context(
            Peer("benchmarks.players.httporigin", str(desk / "origin.pem"), core=other_core)
        )
        port, authority = origin.ask("port"), roots.cert_pem.bytes().decode()
        tenants = stack.enter_context(Peer("benchmarks.players.tenants", core=other_core))
        alone, watched = (
            stack.enter_context(Daemon(desk / name, proxy_core, port, authority, more=_POLICY))
            for name in ("alone", "watched")
        )
        alone.open(tenants, 0)
        watched.open(tenants, 1)
        watched.open(tenants, 2)
        tenants.ask("hold", number=2, count=ASKS)
        _wait_for_asks(watched)
        threading.Thread(target=_read_events, args=(watched,), daemon=True).start()
        return _compare(tenants, {"alone": (alone, 0), "watched": (watched, 1)})


def _compare(tenants: Peer, subjects: dict[str, tuple[Daemon, int]]) -> list[Row]:
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    rates: dict[str, list[float]] = {name: [] for name in subjects}

    def timer(name: str) -> Callable[[], float]:
        daemon, number = subjects[name]

        def run() -> float:
            used, rate = load(tenants, daemon, [number], CONNECTIONS, Daemon.served)
            taken[name].append(used)
            rates[name].append(rate)
            return used

        return run

    found = interleave({name: timer(name) for name in subjects}, ROUNDS)
    pairs = zip(taken["watched"], taken["alone"], strict=True)
    pace = {name: sample(each).median for name, each in rates.items()}
    return [
        Row(
            f"CPU for a request beside {ASKS} questions, watched, against neither",
            f"{found['watched'].shown('µs', 1e6)}, {pace['watched']:6.0f} /s",
            statistics.median(own / other for own, other in pairs),
            CPU_AT_MOST,
        ),
        Row("  neither", f"{found['alone'].shown('µs', 1e6)}, {pace['alone']:6.0f} /s"),
    ]


def _wait_for_asks(daemon: Daemon) -> None:
    end = time.monotonic() + PATIENCE
    while len(daemon.client.asks().asks) < ASKS:
        if time.monotonic() > end:
            raise RuntimeError("the questions did not come")
        time.sleep(0.1)


def _read_events(daemon: Daemon) -> None:
    """As `keyhole watch` does: all of them, until the gateway ends."""
    stream = daemon.client.watch({"answers": "yes", "decisions": "yes"})
    while select.select([stream], [], []) and stream.read() is not None:
        pass
