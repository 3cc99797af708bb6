"""One session sticks the data plane: the kill switch and everything beside it still works (I12).

The data plane is stuck in two ways: it is stopped by a signal, and it is in a match that holds the
interpreter lock, begun by a request of a sandbox.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest

from keyhole.app.daemon.data_plane_process import MAX_LOSSES
from keyhole.app.daemon.plane_calls import LOOK_SECONDS, ONE_RECEIPT_SECONDS
from keyhole.app.processes.heartbeat import STUCK_SECONDS
from keyhole.control.client import RequestDeclined
from keyhole.control.values import SessionPhase
from tests.rigs.daemon.sticky import KILL_SWITCH_SECONDS, Sticky, stick, stop, timed
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.rigs.daemon.estate import Inside

pytestmark = pytest.mark.outside

SLACK_SECONDS = 1.0
"""For the processes of a test on a busy host."""


@pytest.fixture(scope="module")
def estate() -> Iterator[Sticky]:
    with Sticky() as made:
        yield made
        made.assert_nothing_left()


@pytest.fixture(autouse=True)
def gateway(estate: Sticky) -> Iterator[None]:
    """Anew for each test, as data planes may be lost so often and not more in a minute."""
    estate.up_sticky()
    yield
    assert estate("down").code == 0
    estate.assert_quiet()


WAYS = pytest.mark.parametrize("way", [stop, stick])


def session_of(estate: Sticky, inside: Inside) -> str:
    (found,) = [s.id for s in estate.client.sessions() if s.pid == inside.process.pid]
    return found


def ended_in(estate: Sticky) -> set[str]:
    """The sessions whose end the log has."""
    events = estate.project.events()
    return {e["session"] for e in events if (e["kind"], e["reason"]) == ("session", "ended")}


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────


@WAYS
def test_the_kill_switch_closes_every_door_in_time(
    estate: Sticky, way: Callable[[Sticky, Inside], None]
) -> None:
    """I12: whoever asked has its answer, and no door is open any more when it comes."""
    took = []
    for _ in range(3):
        hostile, other = estate.enter(), estate.enter()
        other.stream()
        plane = os.pidfd_open(estate.data_plane)
        way(estate, hostile)
        seconds, revoked = timed(estate.client.revoke_all)
        took.append(seconds)
        assert revoked == 2
        # The kernel has closed all that it had: nothing can be sent any more.
        assert has_ended(plane)
        os.close(plane)
        assert other.streamed() != 0
        for each in (hostile, other):
            each.until_told("the session was revoked")
            assert each.get() != 0
            each.close()
        estate.until_serving()
        if seconds < KILL_SWITCH_SECONDS:
            break
    assert min(took) < KILL_SWITCH_SECONDS, took


@WAYS
def test_to_revoke_one_closes_the_others_too_and_tells_them_why(
    estate: Sticky, way: Callable[[Sticky, Inside], None]
) -> None:
    """I8, I12: a new data plane serves those that come; what happened is written down."""
    hostile, other = estate.enter(), estate.enter()
    plane = estate.data_plane
    one, beside = session_of(estate, hostile), session_of(estate, other)
    way(estate, hostile)
    seconds, _ = timed(lambda: estate.client.revoke_session(one))
    assert seconds < ONE_RECEIPT_SECONDS + SLACK_SECONDS
    hostile.until_told("the session was revoked")
    other.until_told(
        "the gateway's data plane was ended: it did not answer; nothing inside reaches anything"
        f" any more; end the command (Ctrl-C, or `keyhole stop {beside}`) and run it again"
    )
    assert (hostile.get() != 0, other.get() != 0) == (True, True)
    states = {each.id: each.state for each in estate.client.sessions()}
    assert states == {one: SessionPhase.REVOKED, beside: SessionPhase.REVOKED}
    # As it said; and the new one is as good as the old one.
    assert estate("stop", beside).code == 0
    other.until_gone()
    fresh = estate.enter()
    assert fresh.get() == 0
    assert estate.data_plane != plane
    for each in (hostile, fresh):
        each.close()
    estate.until_sessions(0)
    # An event is on the disk a moment after it is recorded, and the sessions were gone before that.
    until(lambda: {one, beside} <= ended_in(estate))
    events = [e for e in estate.project.events() if e["kind"] == "session"]
    told = [e["details"] for e in events if e["reason"] == "data-plane-ended"]
    (ended,) = [each for each in told if each["pid"] == plane]
    assert (ended["why"], ended["sessions"]) == ("it did not answer", 2)
    closed = {e["session"]: e["details"]["why"] for e in events if e["reason"] == "closed"}
    assert (closed[one], closed[beside]) == ("revoked", "lost")


@WAYS
def test_a_session_can_be_stopped_with_its_sandbox(
    estate: Sticky, way: Callable[[Sticky, Inside], None]
) -> None:
    hostile = estate.enter()
    session = session_of(estate, hostile)
    way(estate, hostile)
    seconds, _ = timed(lambda: estate.client.stop_session(session))
    assert seconds < ONE_RECEIPT_SECONDS + 2 * SLACK_SECONDS
    hostile.until_told("the session was stopped")
    hostile.until_gone()


@WAYS
def test_the_gateway_can_be_ended(estate: Sticky, way: Callable[[Sticky, Inside], None]) -> None:
    hostile, other = estate.enter(), estate.enter()
    way(estate, hostile)
    seconds, ran = timed(lambda: estate("down"))
    assert ran.code == 0, ran
    assert seconds < ONE_RECEIPT_SECONDS + 4 * SLACK_SECONDS
    for each in (hostile, other):
        each.until_told("the session was stopped")
        each.until_gone()
    assert estate.registered() == []


# ── ended from outside ────────────────────────────────────────────────────────────────────────────


# It takes as long as the heartbeat waits: ten seconds, in which a match keeps a processor busy.
@pytest.mark.parametrize("way", [stop, pytest.param(stick, marks=pytest.mark.attack)])
def test_a_data_plane_that_does_not_turn_is_shown_and_then_replaced(
    estate: Sticky, way: Callable[[Sticky, Inside], None]
) -> None:
    """I8, I12: lists show what was known last, and nobody has to ask for its end."""
    hostile, other = estate.enter(), estate.enter()
    assert other.get() == 0
    requests = {each.pid: each.requests for each in estate.client.sessions()}
    assert requests[other.process.pid] == 1
    plane = estate.data_plane
    way(estate, hostile)
    for look in (estate.client.status, estate.client.sessions):
        seconds, _ = timed(look)
        assert seconds < LOOK_SECONDS + SLACK_SECONDS
    until(lambda: {each.state for each in estate.client.sessions()} == {SessionPhase.SILENT})
    assert {each.pid: each.requests for each in estate.client.sessions()} == requests
    notes = {each.name: each.note for each in estate.client.status().protections}
    assert notes["data-plane"] == "it does not respond; what is shown here is what it told last"
    assert not estate.client.health().healthy
    with pytest.raises(RequestDeclined, match="does not respond"):
        estate.client.open_session(estate.opening())
    # And then it is ended.
    words = f"the gateway's data plane was ended: it did not respond for {STUCK_SECONDS:g} s"
    for each in (hostile, other):
        each.until_told(words)
        assert each.get() != 0
        each.close()
    estate.until_serving()
    assert estate.data_plane != plane
    ended = [e["details"] for e in estate.project.events() if e["reason"] == "data-plane-ended"]
    assert (plane, f"it did not respond for {STUCK_SECONDS:g} s") in [
        (each["pid"], each["why"]) for each in ended
    ]
    fresh = estate.enter()
    assert fresh.get() == 0
    fresh.close()


def test_a_gateway_that_is_stopped_as_a_whole_goes_on_where_it_was(estate: Sticky) -> None:
    """The host was suspended, or somebody typed Ctrl-Z: that is no fault of the data plane."""
    inside = estate.enter()
    plane = estate.data_plane
    tree = (estate.gateway, plane, estate.keeper)
    for pid in tree:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STUCK_SECONDS + 2)  # not to wait: it is how long they stand still
    for pid in reversed(tree):
        os.kill(pid, signal.SIGCONT)
    assert inside.get() == 0
    assert estate.data_plane == plane
    inside.close()


def test_a_data_plane_that_breaks_is_replaced_within_bounds(estate: Sticky) -> None:
    """I2, I9: its sessions are closed and told; a loop of crashes ends the gateway."""
    inside = estate.enter()
    prepared = estate.client.open_session(estate.opening())
    control = os.pidfd_open(estate.gateway)
    for number in range(MAX_LOSSES):
        plane = estate.data_plane
        os.kill(plane, signal.SIGSEGV)
        if not number:
            inside.until_told("the gateway's data plane was ended: it broke off")
            assert inside.get() != 0
            # One that waited for its door has none to wait for.
            with pytest.raises(RequestDeclined):
                estate.client.grant(prepared.id, "x.example", 1, 1)
        if number + 1 < MAX_LOSSES:
            until(lambda before=plane: estate.data_plane != before)  # type: ignore[misc]
            estate.until_serving()
    assert select.select([control], [], [], PATIENCE)[0]
    os.close(control)
    log = (estate.state / "gateway.log").read_text()
    assert f"no other data plane is started: {MAX_LOSSES} were lost within 60 s" in log
    inside.until_gone()


# ── the positive control ──────────────────────────────────────────────────────────────────────────


def test_a_data_plane_that_turns_closes_one_session_and_serves_the_other(estate: Sticky) -> None:
    """I12: nothing is ended without need."""
    one, other = estate.enter(), estate.enter()
    other.stream()
    plane = estate.data_plane
    estate.client.revoke_session(session_of(estate, one))
    one.until_told("the session was revoked")
    assert one.get() != 0
    assert other.line() in ("tick", "")
    estate.client.stop_session(session_of(estate, one))
    one.until_gone()
    assert (estate.data_plane, other.process.poll()) == (plane, None)
    assert estate.client.revoke_all() == 1
    assert other.streamed() != 0
    assert estate.data_plane == plane
    other.close()


# ── the service manager ───────────────────────────────────────────────────────────────────────────


def test_the_watchdog_hears_of_the_gateway_while_the_data_plane_turns(estate: Sticky) -> None:
    """I12: a service manager restarts a gateway that could not help itself."""
    assert estate("down").code == 0
    place = str(estate.project.home / "tmp" / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(place)
        manager.settimeout(PATIENCE)
        env = estate.env | {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "3000000"}
        process = estate.project.start("up", "--foreground", "--workers", "1", env=env)
        try:
            assert [manager.recv(64) for _ in range(3)] == [b"READY=1", *[b"WATCHDOG=1"] * 2]
            plane = estate.data_plane
            os.kill(plane, signal.SIGSTOP)
            manager.settimeout(3.0)
            # What it had said before may be heard late.
            with pytest.raises(TimeoutError):
                [manager.recv(64) for _ in range(3)]
            os.kill(plane, signal.SIGCONT)
            manager.settimeout(PATIENCE)
            assert manager.recv(64) == b"WATCHDOG=1"
            assert estate.data_plane == plane
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)
            os.unlink(place)
