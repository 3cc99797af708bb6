"""A plain `keyhole run` has a control endpoint, which works while its data plane is stuck (I12)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from keyhole.app.processes.heartbeat import STUCK_SECONDS
from keyhole.app.run.data_plane_service import STUCK
from tests.rigs.sandbox.projects import line_of, rest_of, until_nobody_is_in
from tests.rigs.sandbox.screens import Screen
from tests.rigs.waiting import PATIENCE, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.rigs.sandbox.projects import Project

pytestmark = [pytest.mark.outside, pytest.mark.by_turns]

FAULT = {"KEYHOLE_UNSAFE_FAULT": STUCK}

AT_MOST_SECONDS = 0.2
"""From the kill switch to closed doors."""

# Asks the origin once for each line that it is sent, and says what came of it.
ASKING = """
import os, ssl, sys, urllib.request
print(os.readlink("/proc/self/ns/net"), flush=True)
context = ssl.create_default_context(cafile="ca.pem")
for line in sys.stdin:
    try:
        with urllib.request.urlopen("https://origin.example/x", context=context, timeout=5) as got:
            print("got", got.status, flush=True)
    except OSError as error:
        print("nothing", flush=True)
print("over", flush=True)
"""

# As a verb does it, without the time that an interpreter takes to start.
REVOKE = """
import sys, time
from pathlib import Path
from keyhole.control.endpoints import ask_all, find_endpoints
start = time.monotonic()
answers = ask_all(find_endpoints(Path(sys.argv[1])), lambda each: each.revoke_all())
print(time.monotonic() - start)
"""


class Asking:
    """A run whose command asks the origin when it is told to."""

    def __init__(self, project: Project, process: subprocess.Popen[bytes]) -> None:
        self.project = project
        self.process = process
        self.namespace = line_of(process.stdout)
        self.id, self.main, self.plane = _known(project, process.pid)

    def ask(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return line_of(self.process.stdout)

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert line_of(self.process.stdout) == "over"
        return self.process.wait(PATIENCE)


def _runs(project: Project) -> Path:
    return project.home / "state" / "keyhole" / "run" / "runs"


def _known(project: Project, pid: int) -> tuple[str, int, int]:
    """A run's id and its two processes, as its lock file names them."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for path in _runs(project).glob("*.lock"):
            said = json.loads(path.read_text())
            if said["main"][0] == pid:
                return path.stem, pid, said["plane"][0]
        assert time.monotonic() < deadline, "the run has no endpoint"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def project(open_project: Callable[..., Project]) -> Project:
    made = open_project()
    assert made.run("true").code == 0
    return made


@pytest.fixture
def asking(project: Project) -> Iterator[Callable[[], Asking]]:
    with contextlib.ExitStack() as stack:

        def start() -> Asking:
            words = ("python3", "-I", "-c", ASKING)
            run = project.running(*words, stdin=-1, env=FAULT)
            return Asking(project, stack.enter_context(run))

        yield start


def stop_it(plane: int) -> None:
    os.kill(plane, signal.SIGSTOP)


def keep_it_busy(plane: int) -> None:
    """A pattern that takes forever, with the interpreter lock held."""
    os.kill(plane, signal.SIGUSR1)


STUCK_WAYS = pytest.mark.parametrize("get_stuck", [stop_it, keep_it_busy])


def listed(project: Project) -> dict[str, dict[str, Any]]:
    said = project("ps", "--json")
    assert said.code == 0, said
    return {each["id"]: each for each in json.loads(said.out)}


def until_state(project: Project, session: str, state: str) -> None:
    until(lambda: listed(project)[session]["state"] == state)


def closed_in(project: Project) -> float:
    """Seconds that the kill switch takes, as the person uses it."""
    python = project.person.program.with_name("python")
    runtime = str(_runs(project).parent)
    said = subprocess.run(
        [str(python), "-c", REVOKE, runtime],
        env=project.env, cwd=project.directory, capture_output=True, text=True,
        timeout=PATIENCE, check=True, **project.person.become(),
    )  # fmt: skip
    return float(said.stdout)


def until_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        assert select.select([pidfd], [], [], PATIENCE)[0], f"{pid} lives on"
        os.close(pidfd)


# every run can be seen and closed


def test_verbs_know_plain_runs_and_revoking_one_leaves_the_other(
    project: Project, asking: Callable[[], Asking]
) -> None:
    said = project("ps")
    assert (said.code, said.out) == (0, "no session is open; `keyhole run -- CMD` opens one\n")
    assert json.loads(project("ps", "--json").out) == []
    one, two = asking(), asking()
    assert (one.ask(), two.ask()) == ("got 200", "got 200")
    found = listed(project)
    assert set(found) == {one.id, two.id}
    assert found[one.id]["state"] == "open"
    assert found[one.id]["own_gateway"] is True
    assert found[one.id]["label"] == "python3"
    assert found[one.id]["pid"] == one.main
    said = project("revoke", one.id[:8])
    assert (said.code, said.out) == (0, f"{one.id} closed; its connections are cut\n")
    until_gone(one.plane)  # whatever it says, it serves nothing any more
    assert (one.ask(), two.ask()) == ("nothing", "got 200")
    after = listed(project)[one.id]
    assert (after["state"], after["down"] > 0) == ("revoked", True)
    said = project("stop", two.id)
    assert (said.code, said.out) == (0, f"{two.id} ended\n")
    assert two.process.wait(PATIENCE) == 128 + 15
    assert one.end() == 0
    assert list(_runs(project).iterdir()) == []
    assert project("log", "verify").code == 0


def test_a_host_is_allowed_to_a_plain_run_while_it_lasts(
    project: Project, asking: Callable[[], Asking]
) -> None:
    run = asking()
    said = project("allow", run.id, "more.example", "--for", "1m", "--uses", "3")
    assert said.code == 0, said
    assert said.out.startswith(f"{run.id} may connect to more.example 3 times, until ")
    (grant,) = listed(project)[run.id]["grants"]
    assert (grant["id"], grant["uses"]) == ("more.example", 3)
    refused = project("allow", run.id, "198.51.100.7")
    assert refused.code != 0
    assert project("revoke", "--all").code == 0
    closed = project("allow", run.id, "more.example")
    assert (closed.code, closed.err) == (1, "keyhole: the session's door is not open\n")
    assert run.end() == 0


def test_runs_are_known_beside_a_gateway_that_is_up(project: Project) -> None:
    assert project("up").code == 0
    try:
        own = project.running("sleep", "1000", stdin=-3)
        flagged = project.start("run", "--trust", "--own-gateway", "--", "sleep", "1001")
        with own as shared:
            deadline = time.monotonic() + PATIENCE
            while len(found := listed(project)) < 2:
                assert time.monotonic() < deadline, found
            kinds = {each["pid"]: each["own_gateway"] for each in found.values()}
            assert kinds == {shared.pid: False, flagged.pid: True}
            said = project("revoke", "--all")
            assert (said.code, said.out) == (0, "2 sessions closed; their connections are cut\n")
            for each in found:
                assert project("stop", each).code == 0
        assert flagged.wait(PATIENCE) == 128 + 15
        flagged.communicate()
    finally:
        assert project("down").code == 0


def test_the_sandbox_has_no_way_to_the_endpoint(
    project: Project, asking: Callable[[], Asking]
) -> None:
    """I5: it is in no tree that the sandbox sees; outside, the same path is answered."""
    run = asking()
    path = _runs(project) / f"{run.id}.sock"
    code = (
        "import json, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX)\n"
        "try: sock.connect(sys.argv[1]); print(json.dumps('connected'))\n"
        "except OSError as error: print(json.dumps(type(error).__name__))\n"
    )
    assert project.python(code, str(path)) == "FileNotFoundError"
    with socket.socket(socket.AF_UNIX) as sock:  # the control
        sock.connect(str(path))
    assert run.end() == 0


# the data plane is stuck


@pytest.mark.alone
@STUCK_WAYS
def test_the_kill_switch_closes_a_stuck_run_in_time(
    project: Project, asking: Callable[[], Asking], get_stuck: Callable[[int], None]
) -> None:
    """I2, I12: closed from outside, together with one that is healthy; the commands live on."""
    healthy, stuck = asking(), asking()
    assert (healthy.ask(), stuck.ask()) == ("got 200", "got 200")
    get_stuck(stuck.plane)
    assert closed_in(project) < AT_MOST_SECONDS
    assert (healthy.ask(), stuck.ask()) == ("nothing", "nothing")
    until_gone(stuck.plane)
    assert stuck.end() == 0
    assert healthy.end() == 0
    ended = [e for e in project.events() if e["session"] == stuck.id]
    reasons = {e["reason"]: e for e in ended}
    assert reasons["closed"]["details"]["why"] == "revoked"
    assert reasons["data-plane-ended"]["verdict"] == "deny"
    assert project("log", "verify").code == 0
    assert b"the session was revoked" in rest_of(stuck.process.stderr)


@STUCK_WAYS
def test_a_stuck_run_is_stopped_by_its_id(
    project: Project, asking: Callable[[], Asking], get_stuck: Callable[[int], None]
) -> None:
    run = asking()
    assert run.ask() == "got 200"
    get_stuck(run.plane)
    said = project("stop", run.id)
    assert (said.code, said.out) == (0, f"{run.id} ended\n")
    assert run.process.wait(PATIENCE) == 128 + 15
    until_gone(run.plane)
    until_nobody_is_in(run.namespace)


@STUCK_WAYS
def test_a_stuck_run_s_terminal_goes_on_and_ctrl_c_ends_the_command(
    project: Project, get_stuck: Callable[[int], None]
) -> None:
    words = ("run", "--trust", "--", "sh", "-c", "while read -r line; do echo said $line; done")
    with Screen(lambda **more: project.start(*words, env=FAULT, **more)) as screen:
        screen.type("one\r")
        screen.until("said one")
        session, _, plane = _known(project, screen.process.pid)
        until_state(project, session, "open")
        get_stuck(plane)
        screen.type("two\r")
        screen.until("said two")
        screen.type("\x03")
        assert screen.wait() == 128 + signal.SIGINT
        until_gone(plane)


@STUCK_WAYS
def test_the_end_of_a_command_waits_for_no_stuck_data_plane(
    project: Project, asking: Callable[[], Asking], get_stuck: Callable[[int], None]
) -> None:
    run = asking()
    assert run.ask() == "got 200"
    get_stuck(run.plane)
    assert run.end() == 0
    until_gone(run.plane)
    reasons = [e["reason"] for e in project.events() if e["session"] == run.id]
    assert reasons[-2:] == ["data-plane-ended", "ended"]
    assert project("log", "verify").code == 0


@pytest.mark.parametrize(
    "get_stuck", [stop_it, pytest.param(keep_it_busy, marks=pytest.mark.attack)]
)
def test_a_data_plane_that_does_not_turn_is_ended_and_told_of(
    project: Project, asking: Callable[[], Asking], get_stuck: Callable[[int], None]
) -> None:
    """I2, I12: nobody asked for it; the sandbox is closed, and its command lives on."""
    run = asking()
    assert run.ask() == "got 200"
    get_stuck(run.plane)
    until_state(project, run.id, "silent")
    until_gone(run.plane)
    assert run.ask() == "nothing"
    assert listed(project)[run.id]["state"] == "revoked"
    assert run.end() == 0
    said = rest_of(run.process.stderr).decode()
    assert f"it did not respond for {STUCK_SECONDS:g} s" in said
    assert f"`keyhole stop {run.id}`" in said


def test_a_run_that_is_stopped_altogether_is_closed_by_its_data_plane(
    project: Project, asking: Callable[[], Asking]
) -> None:
    """Ctrl-Z stops the process that would answer, and nothing waits for it (I12)."""
    run = asking()
    assert run.ask() == "got 200"
    os.kill(run.main, signal.SIGSTOP)
    try:
        assert listed(project)[run.id]["state"] == "silent"
        said = project("revoke", "--all")
        assert (said.code, said.out) == (0, "1 session closed; their connections are cut\n")
        assert said.err == (
            f"keyhole: {run.id} did not answer, so the process that served its door was ended\n"
        )
        until_gone(run.plane)
    finally:
        os.kill(run.main, signal.SIGCONT)
    assert run.ask() == "nothing"
    assert run.end() == 0


def test_a_run_that_is_stopped_altogether_is_ended_by_its_id(
    project: Project, asking: Callable[[], Asking]
) -> None:
    run = asking()
    os.kill(run.main, signal.SIGSTOP)
    said = project("stop", run.id)
    assert (said.code, said.out) == (0, f"{run.id} ended\n")
    until_gone(run.plane)
    until_nobody_is_in(run.namespace)


# its processes


def test_a_run_that_is_killed_leaves_nothing_running_and_nothing_open(
    project: Project, asking: Callable[[], Asking]
) -> None:
    run, other = asking(), asking()
    assert run.ask() == "got 200"
    run.process.kill()
    run.process.wait(PATIENCE)
    until_gone(run.plane)
    until_nobody_is_in(run.namespace)
    assert set(listed(project)) == {other.id}
    assert {path.stem for path in _runs(project).iterdir()} == {other.id}
    assert other.ask() == "got 200"
    assert other.end() == 0


def test_a_data_plane_that_dies_leaves_the_sandbox_closed(
    project: Project, asking: Callable[[], Asking]
) -> None:
    """I2: nobody else holds its sockets."""
    run = asking()
    assert run.ask() == "got 200"
    os.kill(run.plane, signal.SIGKILL)
    until_gone(run.plane)
    assert run.ask() == "nothing"
    assert run.end() == 0
    assert "it was ended by signal 9" in rest_of(run.process.stderr).decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="looks into a process that cannot be looked into")
def test_the_data_plane_is_locked_down_and_has_none_of_the_variables(project: Project) -> None:
    """I1: what the person's shell has is not in the process that reads hostile bytes."""
    words = ("sh", "-c", "echo ready; read -r line")
    with project.running(*words, stdin=-1, env={"OTHER_TOKEN": "of-the-shell"}) as process:
        assert line_of(process.stdout) == "ready"
        session, main, plane = _known(project, process.pid)
        until_state(project, session, "open")  # before that it has read nothing

        def fact(pid: int, name: str) -> str:
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                return next(line.split()[1] for line in file if line.startswith(f"{name}:"))

        assert (fact(plane, "NoNewPrivs"), fact(plane, "Seccomp")) == ("1", "2")
        assert int(fact(plane, "CapEff"), 16) == 0
        with open(f"/proc/{plane}/environ", "rb") as file:
            assert b"of-the-shell" not in file.read()
        with open(f"/proc/{main}/environ", "rb") as file:  # the control
            assert b"of-the-shell" in file.read()


def test_a_run_that_no_verb_can_find_says_so_also_to_a_quiet_person(plain: Project) -> None:
    """I12: the kill switch does not know it."""
    place = plain.home / "place"
    place.write_text("in the way")
    done = plain.shell("exit 7", flags=("-q",), env={"XDG_RUNTIME_DIR": str(place)})
    assert done.code == 7
    assert done.err.startswith("keyhole: `keyhole ps`, `revoke` and `exec` do not know this run: ")
    assert plain.shell("exit 7", flags=("-q",)).err == ""
