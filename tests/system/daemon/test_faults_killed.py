"""Any process of a long-lived gateway is killed: what is left is closed or works, never open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from keyhole.control.client import NoGateway, RequestDeclined
from tests.rigs.control.namespaces import elsewhere
from tests.rigs.daemon.estate import SECRET, Estate, Family, children_of
from tests.rigs.sandbox.projects import rest_of
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.outside

SOURCE = """#!/bin/sh
cd "$(dirname "$0")"
echo $$ > pid.new
mv pid.new pid
if test -e waits; then read ignored < fifo; fi
printf '{"secret": "%s", "expires_in": 8}' "$(cat api)"
"""
"""An `exec:` source that can be made to wait; what it prints lives for eight seconds."""

OPENER = """
import sys
from pathlib import Path
from keyhole.control.client import ControlClient
from keyhole.control.values import SessionRequest
directory, policy, trusted, granted = sys.argv[1:]
opening = SessionRequest(policy, trusted, "tested", granted)
print(ControlClient(Path(directory)).open_session(opening).id, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    with Estate() as made:
        program = made.project.home / "secrets" / "source"
        program.write_text(SOURCE)
        program.chmod(0o700)
        os.mkfifo(program.with_name("fifo"))
        made.policy(f"exec:{program}")
        yield made
        made.assert_nothing_left()


@pytest.fixture(autouse=True)
def nothing_is_left(estate: Estate) -> Iterator[None]:
    (estate.project.home / "secrets" / "waits").unlink(missing_ok=True)
    estate.up()
    yield
    estate.assert_quiet()


def make_it_wait(estate: Estate) -> None:
    """The next time that the source is asked, it does not answer."""
    secrets = estate.project.home / "secrets"
    (secrets / "pid").unlink(missing_ok=True)
    (secrets / "waits").touch()


def source_of(estate: Estate) -> int:
    """The source that is asked now."""
    path = estate.project.home / "secrets" / "pid"
    until(path.exists)
    return int(path.read_text())


def start_run(estate: Estate) -> subprocess.Popen[bytes]:
    return estate.project.start("run", "--trust", "--", "true", env=estate.env)


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    said = rest_of(process.stderr).decode()
    rest_of(process.stdout)
    for pipe in (process.stderr, process.stdout):
        assert pipe is not None
        pipe.close()
    return process.wait(PATIENCE), said


# ── the gateway ───────────────────────────────────────────────────────────────────────────────────


def test_a_killed_gateway_leaves_its_sandboxes_closed_and_the_next_one_ends_them(
    estate: Estate,
) -> None:
    """I2: before the door, after it, and in the middle of an answer."""
    prepared = estate.client.open_session(estate.opening())
    idle, busy = estate.enter(), estate.enter()
    assert (idle.get(), busy.get()) == (0, 0)
    busy.stream()
    assert len(estate.registered()) == 2
    estate.kill_gateway()
    assert busy.streamed() != 0
    for each in (idle, busy):
        each.until_told("the gateway has ended")
        # It lives, and reaches nothing: neither the service nor an address of its own choice.
        assert each.process.poll() is None
        assert each.get() != 0
        each.ask("curl -s -m 2 http://192.0.2.1/ http://127.0.0.1:15001/")
        assert each.code != 0
    until(lambda: not estate.service.busy)
    with elsewhere("tcp", "udp") as door, pytest.raises(NoGateway):
        estate.client.open_door(prepared.id, ["tcp", "udp"], [each.fileno() for each in door])
    assert (estate.runtime / "control.sock").exists()

    left = estate.registered()
    told = estate.up().err
    for session in left:
        assert f"session {session} (sh) of a gateway that died was ended" in told
    assert told.count("of a gateway that died") == 2
    for each in (idle, busy):
        each.until_gone()
        assert f"/keyhole-{each.process.pid}-" not in str(estate.groups())
    assert estate.client.sessions() == []
    written = [(e["session"], e["reason"]) for e in estate.project.events()]
    for session in left:
        assert (session, "left-behind") in written
    # The positive control: the same works at the new one.
    again = estate.enter()
    assert again.get() == 0
    again.close()


def test_what_is_killed_between_two_gateways_is_named_and_cleared_up(estate: Estate) -> None:
    """I2: nobody was there to hear of the supervisor's end; its group goes with the next one."""
    inside = estate.enter()
    (session,) = estate.registered()
    estate.kill_gateway()
    inside.close()
    told = estate.up().err
    assert f"session {session} (sh) of a gateway that died had ended" in told
    assert f"/keyhole-{inside.process.pid}-" not in str(estate.groups())


def test_a_gateway_that_is_killed_while_a_session_is_read_refuses_the_run(estate: Estate) -> None:
    """I2: before the door; the source that was asked ends with those who asked it."""
    make_it_wait(estate)
    run = start_run(estate)
    source = Family(source_of(estate))
    estate.kill_gateway()
    source.until_gone()
    code, said = ended(run)
    assert code == 125
    assert "the gateway hung up" in said
    assert estate.up().err == ""


def test_a_gateway_that_is_killed_while_it_starts_is_no_obstacle(estate: Estate) -> None:
    """At points that the machine chooses: whatever it held or wrote, the next one starts."""
    assert estate("down").code == 0
    families = []
    for seconds in (0.05, 0.2, 0.35, 0.5, 0.65):
        starting = estate.project.start("up", "--foreground", env=estate.env)
        time.sleep(seconds)  # not to wait: it is the point at which it dies
        families.append(Family(starting.pid))
        starting.kill()
        ended(starting)
    for family in families:
        family.until_gone()
    assert estate.up().err == ""
    assert estate.client.status().admitting


def test_two_that_are_started_at_once_are_one(estate: Estate) -> None:
    assert estate("down").code == 0
    started = [estate.project.start("up", env=estate.env) for _ in range(3)]
    outs = []
    for each in started:
        outs.append(rest_of(each.stdout).decode())
        code, said = ended_quietly(each)
        assert (code, said) == (0, "")
    pid = estate.gateway
    assert sorted(f"process {pid}" in out for out in outs) == [True, True, True]
    assert sum("the gateway is up" in out for out in outs) == 1
    assert sum("a gateway is up already" in out for out in outs) == 2


def ended_quietly(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    said = rest_of(process.stderr).decode()
    for pipe in (process.stderr, process.stdout):
        assert pipe is not None
        pipe.close()
    return process.wait(PATIENCE), said


# ── the keeper ────────────────────────────────────────────────────────────────────────────────────


def test_without_its_keeper_a_gateway_serves_whom_it_has_and_takes_nobody(estate: Estate) -> None:
    """I3: what cannot be read is refused; `status` says which process is missing."""
    inside = estate.enter()
    assert {p.name: p.on for p in estate.client.status().protections}["keeper"]
    inside.stream()
    make_it_wait(estate)
    waiting = start_run(estate)
    source = Family(source_of(estate))
    keeper = estate.keeper
    os.kill(keeper, signal.SIGKILL)
    source.until_gone()
    code, said = ended(waiting)
    assert code == 125
    assert "keeper has ended" in said
    # It was waited for: no zombie stands for it.
    until(lambda: not Path(f"/proc/{keeper}").exists())
    until(lambda: not {p.name: p.on for p in estate.client.status().protections}["keeper"])
    assert "keeper" in estate("status").out

    assert inside.line() == "tick"
    os.kill(descendants(inside.process.pid)[-1], signal.SIGKILL)  # curl
    assert inside.streamed() == 128 + signal.SIGKILL
    assert inside.get() == 0
    with pytest.raises(RequestDeclined, match="keeper has ended"):
        estate.client.open_session(estate.opening())
    with pytest.raises(RequestDeclined, match="keeper has ended"):
        estate.client.reload()
    refused = estate("run", "--trust", "--", "true")
    assert refused.code == 125
    assert "`keyhole down` and `keyhole up`" in refused.err

    (estate.project.home / "secrets" / "waits").unlink()
    assert estate("down").code == 0
    inside.until_gone()
    estate.up()
    assert estate("run", "--trust", "--", "true").code == 0


# ── the supervisor ────────────────────────────────────────────────────────────────────────────────


def test_a_killed_supervisor_takes_its_sandbox_and_its_session_along(estate: Estate) -> None:
    """I2: before the door, after it, and in the middle of an answer; others go on."""
    other, idle, busy = estate.enter(), estate.enter(), estate.enter()
    busy.stream()
    opener = subprocess.Popen(
        [sys.executable, "-c", OPENER, str(estate.runtime), *opening_words(estate)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert opener.stdout is not None
    prepared = opener.stdout.readline().decode().strip()
    assert {s.id: s.state for s in estate.client.sessions()}[prepared] == "prepared"
    make_it_wait(estate)
    asking = start_run(estate)
    source = Family(source_of(estate))

    for each in (idle.process, busy.process, opener, asking):
        each.kill()
    idle.until_gone()
    busy.until_gone()
    opener.communicate()
    ended(asking)
    until(lambda: len(estate.client.sessions()) == 1)
    assert len(estate.registered()) == 1
    until(lambda: not estate.service.busy)
    # The one that was being read is let go of, too, when its source has answered.
    (estate.project.home / "secrets" / "waits").unlink()
    (estate.project.home / "secrets" / "fifo").write_text("\n")
    source.until_gone()
    until(lambda: len(estate.client.sessions()) == 1)
    assert other.get() == 0
    other.close()
    estate.until_sessions(0)


def test_killed_processes_of_a_sandbox_end_it_and_its_session(estate: Estate) -> None:
    """I2: whichever of them it is, from the helper to the shell itself."""
    count = 0
    while True:
        inside = estate.enter()
        assert inside.get() == 0
        line = descendants(inside.process.pid)
        os.kill(line[count], signal.SIGKILL)
        inside.until_gone()
        assert inside.process.returncode != 0
        estate.until_sessions(0)
        assert estate.registered() == []
        count += 1
        if count == len(line):
            break
    assert count >= 3
    # One that only asks something is no sandbox.
    inside = estate.enter()
    inside.say("curl -sSN https://api.example/v1/ticks & echo $!; wait $!; echo ' :'$?")
    while inside.line() != "tick":
        pass
    os.kill(descendants(inside.process.pid)[-1], signal.SIGKILL)
    assert inside.streamed() == 128 + signal.SIGKILL
    assert inside.get() == 0
    inside.close()


def descendants(pid: int) -> list[int]:
    """From the first child to the last grandchild; the youngest of each."""
    found: list[int] = []
    while below := children_of(pid):
        pid = below[-1]
        found.append(pid)
    return found


# ── an `exec:` source ─────────────────────────────────────────────────────────────────────────────


def test_a_source_that_is_killed_closes_its_service_and_the_next_time_gives_one(
    estate: Estate,
) -> None:
    make_it_wait(estate)
    run = start_run(estate)
    os.kill(source_of(estate), signal.SIGKILL)
    code, said = ended(run)
    assert code == 0
    assert "closed, as its secret cannot be read" in said
    assert "signal 9" in said
    assert estate.client.sessions() == []
    (estate.project.home / "secrets" / "waits").unlink()
    assert estate("run", "--trust", "--", "true").code == 0


def test_a_source_that_is_killed_while_a_session_runs_costs_it_nothing(estate: Estate) -> None:
    """I1, I7: what was given serves until its end; the person hears that there is no new one."""
    inside = estate.enter()
    assert inside.get() == 0
    make_it_wait(estate)
    os.kill(source_of(estate), signal.SIGKILL)  # asked again at half of its life
    inside.until_told("is not renewed")
    before = len(estate.service.seen)
    assert inside.get() == 0
    assert estate.service.seen[before:] == [f"Bearer {SECRET}"]
    until(lambda: "change-refused" in estate.reasons())
    inside.close()


def opening_words(estate: Estate) -> tuple[str, str, str]:
    made = estate.opening()
    return made.policy, made.trusted, made.granted
