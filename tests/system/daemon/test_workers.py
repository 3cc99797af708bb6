"""Sessions are spread over workers, which hold the gateway's promises and limits together (I12)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.daemon.workers import DEFAULT_MOST
from keyhole.control.client import RequestDeclined
from keyhole.control.values import ReloadOutcome, SessionPhase
from tests.rigs.daemon.doors import NAMES, Doors, Tenancy, ask
from tests.rigs.daemon.sticky import KILL_SWITCH_SECONDS, Sticky, stick, stop, timed, worker_of
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.daemon.estate import Estate, Inside

pytestmark = pytest.mark.outside

RATE = 40
"""Requests a second of all sandboxes together."""


@pytest.fixture
def estate() -> Iterator[Sticky]:
    with Sticky() as made:
        yield made
        made.assert_nothing_left()


def limit(estate: Estate, **limits: int) -> None:
    """Set limits of all sandboxes together."""
    path = estate.places.config / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "\n".join(f"{name} = {number}" for name, number in limits.items())
    path.write_text(f"[gateway]\n{words}\n")


def spread(estate: Estate, doors: Doors, count: int) -> list[Tenancy]:
    return [Tenancy(estate, doors, number) for number in range(count)]


def workers_of(estate: Estate) -> dict[str, int]:
    """The number of the worker of each session."""
    return {each.id: each.worker for each in estate.client.sessions()}


def metric(estate: Estate, name: str) -> float:
    lines = estate("status", "--metrics").out.splitlines()
    (found,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(found)


def told(tenancy: Tenancy, word: str) -> dict[str, Any]:
    """The next message to a sandbox's holder that has this member."""
    while True:
        message: dict[str, Any] = json.loads(tenancy.line.recv(65536))
        if word in message:
            return message


# ── spread ────────────────────────────────────────────────────────────────────────────────────────


def test_sessions_are_spread_and_every_verb_shows_all_of_them(estate: Sticky) -> None:
    estate.up(2)
    with Doors() as doors:
        made = spread(estate, doors, 4)
        assert sorted(workers_of(estate).values()) == [1, 1, 2, 2]
        assert [each.get() for each in made] == [200] * 4
        status = json.loads(estate("status", "--json").out)
        assert [each["sessions"] for each in status["workers"]] == [2, 2]
        assert len({each["pid"] for each in status["workers"]}) == 2
        assert status["sessions"] == 4
        shown = json.loads(estate("ps", "--json").out)
        assert sorted((each["worker"], each["requests"]) for each in shown) == [
            (1, 1), (1, 1), (2, 1), (2, 1),
        ]  # fmt: skip
        assert metric(estate, "keyhole_request_seconds_count") == 4
        assert f"2: process {status['workers'][0]['pid']} with 2" in estate("status").out
        # Sessions of one policy are with both, and it is one policy.
        (policy,) = estate.client.reload().policies
        assert policy.outcome is ReloadOutcome.UNCHANGED
        # The keeper tells both of a new secret.
        estate.secret("another-secret-0123456789abcdef")
        until(lambda: all(sent_the_new_one(estate, each) for each in made))
        for each in made:
            each.finish()
    reasons = estate.reasons()
    assert (reasons.count("reload-asked"), reasons.count("ended")) == (1, 4)


def test_without_a_number_there_is_a_worker_for_each_core_that_it_may_use(estate: Sticky) -> None:
    cores = os.sched_getaffinity(0)
    for usable in ({min(cores)}, cores):
        os.sched_setaffinity(0, usable)
        try:
            assert estate("up").code == 0
        finally:
            os.sched_setaffinity(0, cores)
        assert len(estate.workers) == min(DEFAULT_MOST, len(usable))
        assert estate("down").code == 0


def sent_the_new_one(estate: Estate, tenancy: Tenancy) -> bool:
    assert tenancy.get() == 200
    return "another-secret" in estate.service.seen[-1]


def test_a_namespace_has_one_door_whichever_worker_is_asked(estate: Sticky) -> None:
    """I5. Control: a namespace of its own is served."""
    estate.up(2)
    with Doors() as doors:
        one = Tenancy(estate, doors, 0)
        opened = estate.client.open_session(estate.opened_as)
        assert set(workers_of(estate).values()) == {1, 2}
        door = doors.again(0)
        with pytest.raises(RequestDeclined, match="namespace"):
            estate.client.open_door(opened.id, NAMES[:2], [each.fileno() for each in door])
        for each in door:
            each.close()
        other = Tenancy(estate, doors, 1)
        assert (one.get(), other.get(), set(workers_of(estate).values())) == (200, 200, {1, 2})
        one.finish()
        other.finish()


# ── lost, stuck ───────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_dies_closes_its_own_sessions_alone_and_is_replaced(estate: Sticky) -> None:
    """I2, I12."""
    estate.up(2)
    with Doors() as doors:
        made = spread(estate, doors, 2)
        mine, other = sorted(made, key=lambda each: workers_of(estate)[each.id])
        for _ in range(3):
            assert (mine.get(), other.get()) == (200, 200)
        counted = metric(estate, "keyhole_request_seconds_count")
        first, second = estate.workers
        with mine.connect() as cut, other.connect() as kept:
            assert (ask(cut), ask(kept)) == (200, 200)
            os.kill(first, signal.SIGKILL)
            assert told(mine, "closed")["closed"] == "lost"
            with contextlib.suppress(ConnectionResetError, ssl.SSLError):
                assert cut.recv(1) == b""
            assert ask(kept) == 200  # not even its connection was cut
        states = {each.id: each.state for each in estate.client.sessions()}
        assert states == {mine.id: SessionPhase.REVOKED, other.id: SessionPhase.OPEN}
        estate.until_serving()
        assert estate.workers[0] != first
        assert estate.workers[1] == second
        # The new one serves, and what the lost one counted stays counted.
        fresh = Tenancy(estate, doors, 2)
        assert (workers_of(estate)[fresh.id], fresh.get()) == (1, 200)
        assert metric(estate, "keyhole_request_seconds_count") >= counted + 2
        assert metric(estate, "keyhole_data_plane_restarts_total") == 1
        mine.hang_up()
        other.finish()
        fresh.finish()


@pytest.mark.parametrize("way", [stop, stick])
def test_the_kill_switch_is_in_time_with_one_stuck_worker(
    estate: Sticky, way: Callable[[Estate, Inside], None]
) -> None:
    """I12: whoever asked has its answer; the worker that was not stuck lives on."""
    estate.up_sticky(2)
    took = []
    for _ in range(3):
        hostile, other = estate.enter(), estate.enter()
        healthy = worker_of(estate, other)
        assert worker_of(estate, hostile) != healthy
        other.stream()
        way(estate, hostile)
        seconds, revoked = timed(estate.client.revoke_all)
        took.append(seconds)
        assert revoked == 2
        assert other.streamed() != 0
        for each in (hostile, other):
            each.until_told("the session was revoked")
            assert each.get() != 0
            each.close()
        assert healthy in estate.workers
        estate.until_serving()
        if seconds < KILL_SWITCH_SECONDS:
            break
    assert min(took) < KILL_SWITCH_SECONDS, took


def test_a_stuck_worker_delays_no_session_of_another(estate: Sticky) -> None:
    """I12: new sessions go to one that responds; one of the stuck is revoked alone."""
    estate.up_sticky(2)
    hostile, other = estate.enter(), estate.enter()
    stuck, healthy = worker_of(estate, hostile), worker_of(estate, other)
    stop(estate, hostile)
    assert other.get() == 0
    until(lambda: not all(each.responds for each in estate.client.status().workers))
    states = {each.pid: each.state for each in estate.client.sessions()}
    assert states[other.process.pid] is SessionPhase.OPEN
    until(lambda: SessionPhase.SILENT in {each.state for each in estate.client.sessions()})
    third = estate.enter()
    assert (worker_of(estate, third), third.get()) == (healthy, 0)
    (session,) = [s.id for s in estate.client.sessions() if s.pid == hostile.process.pid]
    estate.client.revoke_session(session)
    until(lambda: stuck not in estate.workers)
    assert (hostile.get() != 0, other.get(), third.get()) == (True, 0, 0)
    for each in (hostile, other, third):
        each.close()


# ── limits of all together ────────────────────────────────────────────────────────────────────────


class Flood(threading.Thread):
    """Requests of one session, as fast as they are answered."""

    def __init__(self, tenancy: Tenancy, until_: float) -> None:
        super().__init__()
        self._sock, self._until = tenancy.connect(), until_
        self.served = 0
        self.start()

    def run(self) -> None:
        with self._sock:
            while time.monotonic() < self._until:
                if ask(self._sock) == 200:
                    self.served += 1
                else:
                    time.sleep(0.005)


def flood(tenancies: list[Tenancy], seconds: float) -> tuple[list[int], float]:
    """Requests that were served of each, and for how many seconds."""
    begun = time.monotonic()
    floods = [Flood(each, begun + seconds) for each in tenancies]
    for each in floods:
        each.join()
    return [each.served for each in floods], time.monotonic() - begun


def test_a_rate_of_all_together_holds_across_workers_and_goes_where_it_is_used(
    estate: Sticky,
) -> None:
    """I9, I12: never more than the rate and one at once for each worker; one busy session gets
    more than its worker's half; two get the same."""
    estate.policy(more="[limits]\nrequests_per_second = 500\n")
    limit(estate, requests_per_second=RATE)
    estate.up(2)
    with Doors() as doors:
        one, other = spread(estate, doors, 2)
        time.sleep(1)  # the first burst is whole
        (alone,), took = flood([one], 3.0)
        assert alone <= RATE * (took + 1) + 2
        assert alone > 0.75 * RATE * took
        both, took = flood([one, other], 4.0)
        assert sum(both) <= RATE * (took + 1) + 2
        assert sum(both) > 0.7 * RATE * took
        assert min(both) > 0.25 * sum(both)
        one.finish()
        other.finish()


def test_connections_of_all_together_are_bounded_across_workers(estate: Sticky) -> None:
    """I9: ten for all; one worker may have nearly all of them, and both never have more."""
    limit(estate, connections=10)
    estate.up(2)
    with Doors() as doors, ExitStack() as stack:
        one, other = spread(estate, doors, 2)
        first = [stack.enter_context(one.connect()) for _ in range(8)]
        assert [ask(each) for each in first] == [200] * 8
        second = [stack.enter_context(other.connect()) for _ in range(2)]
        assert [ask(each) for each in second] == [200] * 2
        assert estate.client.status().connections == 10
        # The eleventh waits until another one has ended.
        late: list[ssl.SSLSocket] = []
        waiting = threading.Thread(target=lambda: late.append(other.connect()))
        waiting.start()
        waiting.join(1.5)
        assert (late, estate.client.status().connections) == ([], 10)
        first.pop().close()
        waiting.join()
        assert ask(stack.enter_context(late[0])) == 200
        assert estate.client.status().connections <= 10
        stack.close()
        one.finish()
        other.finish()


# ── written down ──────────────────────────────────────────────────────────────────────────────────


def test_each_worker_has_a_chain_whose_end_the_gateway_records(estate: Sticky) -> None:
    """I8: a worker's file that was cut is found. Control: it is whole before."""
    estate.up(2)
    with Doors() as doors:
        made = spread(estate, doors, 2)
        assert [each.get() for each in made] == [200, 200]
        pids = estate.workers
        for each in made:
            each.finish()
    assert estate("down").code == 0
    assert estate("log", "verify").code == 0
    events = estate.project.events()
    assert [e["reason"] for e in events].count("joined") == 2
    served = {e["session"] for e in events if e["kind"] == "request"}
    assert served == {each.id for each in made}
    for pid in pids:
        (file,) = (estate.state / "audit").glob(f"*-{pid}-*.jsonl")
        whole = file.read_bytes()
        file.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
        said = estate("log", "verify")
        assert (said.code, "one was cut, or is gone" in said.out + said.err) == (1, True), said
        file.write_bytes(whole)


# ── asked ─────────────────────────────────────────────────────────────────────────────────────────


def hello(name: str) -> bytes:
    """The first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_a_question_of_any_worker_reaches_a_person_and_its_answer_the_session(
    estate: Sticky,
) -> None:
    estate.policy(more='[approvals]\nask = ["hosts"]\nwait = "1m"\n')
    estate.up(2)
    with Doors() as doors, contextlib.closing(estate.client.watch({})):
        made = spread(estate, doors, 2)
        assert set(workers_of(estate).values()) == {1, 2}
        for number, tenancy in enumerate(made):
            name = f"asked-{number}.example"
            with doors.connect(number, name) as sock:
                sock.sendall(hello(name))
                until(lambda: estate.client.asks().asks)
                (asked,) = estate.client.asks().asks
                assert (asked.session, asked.host) == (tenancy.id, name)
                assert estate("deny", asked.id).code == 0
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        """An alert may come first."""
            tenancy.finish()
