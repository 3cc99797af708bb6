"""What questions, events and a person who watches cost the data plane.

Two gateways as `keyhole up` starts them, with the same policy, under the same load at the same
time, on the same core. At one of them a second sandbox has a thousand connections that wait for an
answer, ten thousand events a second are written into its log, and `keyhole watch` shows every one
of them. What is judged is the data plane's own processor time for a request: it is what bounds the
rate of a data plane that has a core. Both are loaded at once, so that whatever else the machine
does meets both.

One data plane makes an event for each request, some thousands a second at most. So most of the
events come from a second process, as those of other runs of the user do; it writes them by the
gateway's own code into the directory that all of them share.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from benchmarks.players import duties
from benchmarks.players.daemon import Daemon
from benchmarks.players.peer import Peer, cores
from benchmarks.players.program import dying_with_us
from benchmarks.rounds import Row, sample
from benchmarks.sessions import put_under_load

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKS = 1000
EVENTS = 10_000
"""Events a second that are written."""

CPU_AT_MOST = 1.05
CONNECTIONS = 16
ROUNDS = 11
PATIENCE = 60.0

_POLICY = f"""
[approvals]
ask = ["hosts"]
wait = "10m"
most_pending = {ASKS}
"""


class LineCounter:
    """Counts what `keyhole watch --json` prints."""

    def __init__(self, daemon: Daemon, core: int) -> None:
        keyhole = str(Path(sys.executable).with_name("keyhole"))
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [*dying_with_us(), keyhole, "watch", "--json"],
            env=daemon.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.sched_setaffinity(self.process.pid, {core})
        self.lines = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            while data := os.read(self.process.stdout.fileno(), 1 << 20):
                self.lines += data.count(b"\n")


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
        writer = stack.enter_context(
            Peer("benchmarks.players.events", str(watched.audit), core=other_core)
        )
        counter = stack.enter_context(_watching(watched, other_core))
        return _compare(tenants, alone, watched, writer, counter)


def _compare(
    tenants: Peer, alone: Daemon, watched: Daemon, writer: Peer, counter: LineCounter
) -> list[Row]:
    taken: dict[str, list[float]] = {"alone": [], "watched": []}
    rates: list[float] = []
    writer.ask("begin", per_second=EVENTS)
    start, before = time.monotonic(), counter.lines
    for _ in range(ROUNDS):
        (one, other), used = put_under_load(
            tenants, [0, 1], CONNECTIONS, lambda: [alone.served(), watched.served()]
        )
        taken["alone"].append(used[0] / one)
        taken["watched"].append(used[1] / other)
        rates.append(one + other)
    written, ended = writer.ask("end"), time.monotonic()
    while counter.lines - before < written and time.monotonic() < ended + PATIENCE:
        time.sleep(0.02)
    shown, late, rate = counter.lines - before, time.monotonic() - ended, written / (ended - start)
    pairs = zip(taken["watched"], taken["alone"], strict=True)
    pace = sample(rates).median
    return [
        Row(
            f"CPU for a request beside {ASKS} questions and {rate:.0f} events/s, watched",
            sample(taken["watched"]).shown("µs", 1e6),
            statistics.median(own / other for own, other in pairs),
            CPU_AT_MOST,
        ),
        Row(
            "  neither, at the same time",
            f"{sample(taken['alone']).shown('µs', 1e6)}, both {pace:6.0f} requests/s",
        ),
        Row(
            "  events that `keyhole watch --json` has shown, against those of the other runs",
            f"{shown:8d}, the last {late:.1f} s after it was written",
            shown / written,
            at_least=1.0,
        ),
    ]


@contextmanager
def _watching(daemon: Daemon, core: int) -> Iterator[LineCounter]:
    counter = LineCounter(daemon, core)
    try:
        end = time.monotonic() + PATIENCE
        while counter.lines < ASKS:  # it begins with the questions that wait
            if time.monotonic() > end:
                raise RuntimeError("`keyhole watch` showed no question")
            time.sleep(0.05)
        yield counter
    finally:
        counter.process.kill()
        counter.process.wait()


def _wait_for_asks(daemon: Daemon) -> None:
    end = time.monotonic() + PATIENCE
    while len(daemon.client.asks().asks) < ASKS:
        if time.monotonic() > end:
            raise RuntimeError("the questions did not come")
        time.sleep(0.1)
